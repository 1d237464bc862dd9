"""The unfinished work beside an output file: `.NAME.trainwright`, a private folder. Torch-free.

record.json                what decides the result; work that began with another record is removed
part-<first>-<end>.arrow   finished predictions of the rows FIRST to END; complete or absent
whole                      the output file while it is joined
done.json                  written before the output gets its name, so that a kill in between repeats nothing
lock                       held while a process works here
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data_contracts.errors import StorageUnavailable, UsageError
from infra import files
from infra.files import replace_json
from infra.written_files import record_written

# A child whose parent was killed ends within a second, and holds the lock until then.
WAIT_S = 10.0
_PART = re.compile(r"part-(\d{15})-(\d{15})\.arrow")


class Draft:
    """The folder of unfinished work, locked.

    Attributes:
        begun_anew: what differs from the earlier work that was removed; "" if there was none.
    """

    def __init__(self, output: Path, identity: Mapping[str, str]) -> None:
        """Lock the folder and read what is there.

        Raises: UsageError if another process writes this output, or the folder is not this user's.
        """
        self.output, self.folder = output, unfinished_work(output)
        self.begun_anew = ""
        with room(output, 0):
            self._lock = self._locked()
            self._keep_only(identity)

    @property
    def whole(self) -> Path:
        """Where the output is joined."""
        return self.folder / "whole"

    def parts(self) -> list[tuple[int, int, Path]]:
        """First and end row of each finished part, without gaps from row 0 on; files beside them are removed."""
        found, at = [], 0
        listed = [(match, path) for path in self.folder.iterdir() if (match := _PART.fullmatch(path.name))]
        for match, path in sorted(listed, key=lambda one: (int(one[0][1]), -int(one[0][2]))):
            if int(match[1]) == at:
                at = int(match[2])
                found.append((int(match[1]), at, path))
            else:
                path.unlink()
        return found

    def unfinished(self) -> Path:
        """Where the next part is written."""
        return self.folder / "unfinished"

    def finish(self, first: int, end: int) -> None:
        """Name the part that was written."""
        os.replace(self.unfinished(), self.folder / f"part-{first:015d}-{end:015d}.arrow")

    def published(self) -> dict[str, Any] | None:
        """The answer, if the output already has its name and only this folder was left; else None."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            done = json.loads((self.folder / "done.json").read_text())
            facts = os.stat(self.output)
            if [facts.st_ino, facts.st_size, facts.st_mtime_ns] == done["file"]:
                return dict(done["answer"])
        return None

    def publish(self, answer: dict[str, Any], *, overwrite: bool) -> None:
        """Give the joined file its name, in one step, and remove the folder; UsageError if the name is taken."""
        facts = os.stat(self.whole)
        replace_json(
            self.folder / "done.json",
            {"file": [facts.st_ino, facts.st_size, facts.st_mtime_ns], "answer": answer},
        )
        record_written(self.whole, named=self.output)
        if overwrite:
            os.replace(self.whole, self.output)
        else:
            self._name_new()
        self.remove()

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        # In one step, because half a folder would look like other work; to a name that nobody else can have taken.
        os.replace(self.folder, self.folder.with_name(f"{self.folder.name}.removed-{secrets.token_hex(8)}"))
        for aside in self.folder.parent.glob(f"{glob.escape(self.folder.name)}.removed*"):  # also of killed processes
            with contextlib.suppress(OSError):
                if aside.lstat().st_uid == os.geteuid():
                    shutil.rmtree(aside, ignore_errors=True)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def _name_new(self) -> None:
        try:
            os.link(self.whole, self.output)  # unlike a rename, it never replaces a file
        except FileExistsError:
            raise output_exists(self.output) from None
        except OSError:  # a file system without hard links
            if os.path.lexists(self.output):
                raise output_exists(self.output) from None
            os.replace(self.whole, self.output)

    def _locked(self) -> int:
        deadline = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            facts = os.lstat(self.folder)
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
                raise UsageError(f"{self.folder} is not a folder of this user.", remedy="Remove it.")
            with contextlib.suppress(FileNotFoundError):
                handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                if _taken(handle, self.folder / "lock"):
                    return handle
                os.close(handle)
            if time.monotonic() > deadline:
                raise UsageError(
                    f"Another process is writing {self.output}.",
                    remedy="Wait until it has ended, or name another file.",
                )
            time.sleep(0.1)

    def _keep_only(self, identity: Mapping[str, str]) -> None:
        record = self.folder / "record.json"
        before: dict[str, str] | None = None
        with contextlib.suppress(FileNotFoundError, ValueError):
            before = json.loads(record.read_text())
        if before == dict(identity):
            return
        others = [path for path in self.folder.iterdir() if path.name != "lock"]
        for path in sorted(others, key=lambda path: path.name != record.name):  # the record first
            path.unlink()
        if before is not None and isinstance(before, dict):
            differ = [name for name in identity if identity[name] != before.get(name)]
            self.begun_anew = " and ".join(differ) or "the settings"
        replace_json(record, dict(identity))


def unfinished_work(output: Path) -> Path:
    """The folder beside an output that the work is in until it is complete."""
    return output.with_name(f".{output.name}.trainwright")


def output_exists(output: Path) -> UsageError:
    """The error for an output that exists."""
    return UsageError(f"{output} exists already.", remedy="Name another file, or replace it with --overwrite.")


@contextlib.contextmanager
def room(output: Path, rows: int) -> Iterator[None]:
    """Turn a full or broken disk into one sentence that says what is kept."""
    try:
        yield
    except OSError as error:
        kept = f" The predictions of {rows:,} rows are kept." if rows else ""
        raise StorageUnavailable(
            f"{output} cannot be written: {os.strerror(error.errno) if error.errno else error}.{kept}",
            remedy="Free space, or permit this user to write there, and run the same command again.",
        ) from error


def _taken(handle: int, path: Path) -> bool:
    """Whether this process has the lock now, on the file that still is at `path`."""
    if not files.take(handle):
        return False
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_ino == os.fstat(handle).st_ino
    return False
