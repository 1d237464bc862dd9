"""Temporary folders on this machine: private, removed by their maker, and swept if that process was killed.

    <root>/trainwright-<random>/         0700; also the TMPDIR of a child process that it was made for
                                .owner   its maker and its purpose; locked while that process or its child lives

The root is TMPDIR. The kernel releases the lock when its last holder ends, so a folder whose note is not locked was
left behind. The next command sweeps it; the state folder records the roots. Nothing here follows a link or touches
another user's files. No other module makes temporary folders or files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from infra import files
from infra.machine import boot_id
from infra.processes.processes import find_marked
from infra.settings import is_private_place, library_folders, on_this_machine, state_folder

PREFIX = "trainwright-"

log = logging.getLogger("trainwright")


class Scratch(contextlib.AbstractContextManager["Scratch"]):
    """A temporary folder, removed with all its contents by `close`, or when this object or this process ends.

    Attributes:
        path: the folder.
        handles: file descriptors for a child process to inherit (`pass_fds`), so that it keeps the folder as well.
    """

    def __init__(self, path: Path, handles: tuple[int, ...] = ()) -> None:
        self.path, self.handles = path, handles
        self._closer = weakref.finalize(self, _close, path, handles, os.getpid())

    def rename(self, name: str) -> None:
        """Give the folder another name in the same place, so that nothing is added to it any more."""
        self.path = self.path.rename(self.path.with_name(name))
        self._closer.detach()
        self._closer = weakref.finalize(self, _close, self.path, self.handles, os.getpid())

    def close(self) -> None:
        """Remove the folder; does nothing if it was removed before."""
        self._closer()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def make(made_for: str, *, root: Path | None = None, mark: str = "") -> Scratch:
    """Make a temporary folder; the remains of killed processes are swept first.

    Args:
        made_for: its purpose in one word; `doctor` shows it.
        root: the folder to make it in; default: TMPDIR.
        mark: the mark of the processes that use it (`infra.processes.processes`), if they are not this one.

    Raises: UsageError if it cannot be made below TMPDIR; OSError if it cannot be made in a given `root`.
    """
    place = default_root() if root is None else root
    if _is_inside_scratch(place):  # removed and swept with that folder
        return Scratch(Path(tempfile.mkdtemp(prefix=PREFIX, dir=place)))
    with on_this_machine(state_folder()):
        sweep()
        _remember(place)
    with on_this_machine(place) if root is None else contextlib.nullcontext():
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        handle = write_note(path, made_for, mark)
    return Scratch(path, (handle,))


def unnamed_file() -> FileIO:
    """An unbuffered temporary file without a name: it vanishes when the process ends, in any way."""
    place = default_root()
    with on_this_machine(place):
        return tempfile.TemporaryFile(prefix=PREFIX, dir=place, buffering=0)


def variables(folder: Path) -> dict[str, str]:
    """Environment variables that keep a child process and its libraries out of folders that other users share.

    Args:
        folder: its temporary folder, which its parent removes.
    """
    return {"TMPDIR": str(folder), **library_folders()}


def sweep() -> list[Leftover]:
    """Remove the folders of killed processes; returns what was removed."""
    swept = []
    for path in _all_folders():
        with locked(path) as left:
            if left is not None and not left.why_kept:
                _remove(path)
                swept.append(left)
                log.info("removed %s, which a killed process left behind (%s)", path, left.made_for)
    return swept


def leftovers() -> list[Leftover]:
    """The folders that `sweep` would remove, and similar folders that have to stay; removes nothing."""
    found = []
    for path in _all_folders():
        with locked(path) as left:
            if left is not None:
                found.append(left)
    return found


def default_root() -> Path:
    """TMPDIR, unless other users could replace folders in it; then a folder below the state folder."""
    place = Path(tempfile.gettempdir())
    return place if is_private_place(place) else _below_state_folder()


def unshared_root() -> Path:
    """TMPDIR, unless others can make names in it; then a folder below the state folder.

    For other programs that use predictable names, such as `runner_storage` of Prefect's worker.
    """
    place = Path(tempfile.gettempdir())
    facts = place.stat()
    alone = facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return place if alone else _below_state_folder()


def _below_state_folder() -> Path:
    folder = state_folder() / "tmp"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _all_folders() -> Iterator[Path]:
    """Folders below the roots with our prefix that belong to this user; links are left out."""
    for root in _roots():
        with contextlib.suppress(OSError):
            for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
                mine = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                if entry.name.startswith(PREFIX) and mine and entry.is_dir(follow_symlinks=False):
                    yield root / entry.name


def _is_inside_scratch(place: Path) -> bool:
    for folder in (place, *place.parents):
        if folder.name.startswith(PREFIX):
            with contextlib.suppress(OSError):
                return os.lstat(folder / NOTE).st_uid == os.geteuid()
    return False


def _roots() -> list[Path]:
    links = _remembered()
    roots = [default_root(), *(Path(os.readlink(links / name)) for name in sorted(os.listdir(links)))]
    return list(dict.fromkeys(roots))


def _remember(root: Path) -> None:
    whole = os.path.abspath(root)
    with contextlib.suppress(FileExistsError):
        os.symlink(whole, _remembered() / hashlib.sha256(whole.encode()).hexdigest()[:16])


def _remembered() -> Path:
    """A folder of links to the roots that were used: each link is made atomically, and read but never followed."""
    folder = state_folder() / "scratch-roots"
    folder.mkdir(exist_ok=True)
    return folder


def _close(path: Path, handles: tuple[int, ...], maker: int) -> None:
    if os.getpid() != maker:  # a fork of the maker ends
        return
    _remove(path)
    for handle in handles:
        os.close(handle)


def _remove(path: Path) -> None:
    """Remove a folder, its note last, so that a sweep can still remove the rest after a kill."""
    _remove_all_but_note(path)
    if path.exists():
        _permit(path)
        _remove_all_but_note(path)
    if path.exists():
        log.warning("%s cannot be removed; remove it by hand", path)


def _remove_all_but_note(path: Path) -> None:
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != NOTE:
                os.unlink(entry)
        if set(os.listdir(path)) <= {NOTE}:
            shutil.rmtree(path, ignore_errors=True)


def _permit(path: Path) -> None:
    """Allow this user to remove the contents of folders that a program made read-only."""
    for folder, names, _ in os.walk(path):
        for name in names:
            below = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if not os.path.islink(below):
                    os.chmod(below, 0o700)


NOTE = ".owner"
# As long as a lease: descendants of a process that was just killed may still be ending.
SWEEP_AFTER_S = 30.0
NOTE_BYTES = 4096
UNKNOWN_MAKER = "its maker is not known; remove it by hand if nothing uses it"


@dataclass(frozen=True)
class Leftover:
    """A temporary folder of this user that its maker did not remove.

    Attributes:
        made_for: its purpose, such as `child`; "" if unknown.
        why_kept: why the next command will not sweep it; "" if it will.
    """

    path: Path
    made_for: str
    age_s: float
    why_kept: str = ""

    @property
    def num_bytes(self) -> int:
        """Size of all files in it."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total


def write_note(folder: Path, made_for: str, mark: str) -> int:
    """Write the note of a new folder and lock it; returns its descriptor, which holds the lock.

    Args:
        made_for: the folder's purpose in one word.
        mark: the mark of the processes that use it (`infra.processes.processes`), if they are not this one.
    """
    handle = os.open(folder / NOTE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # no locks on this file system: never swept, as its use is unknown
        fcntl.flock(handle, fcntl.LOCK_EX)
    note = {"boot": boot_id(), "host": platform.node(), "made_for": made_for, "mark": mark, "pid": os.getpid()}
    os.write(handle, json.dumps(note).encode())
    return handle


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Leftover | None]:
    """Lock a folder and describe it; None if it is in use. Of two sweepers, only the one with the lock removes it."""
    note = -1
    try:
        note = os.open(path / NOTE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        is_free = files.take(note)
        left = _described(path, json.loads(os.read(note, NOTE_BYTES)), _age_s(os.fstat(note))) if is_free else None
    except (FileNotFoundError, ValueError):
        left = _without_note(path)
    except OSError as error:
        left = Leftover(path, "", 0.0, f"it is not known whether it is in use ({error.strerror})")
    try:
        yield left
    finally:
        if note >= 0:
            os.close(note)


def _described(path: Path, note: Mapping[str, Any], age_s: float) -> Leftover | None:
    """Describe a folder by its note; None while its processes may still be ending."""
    made_for = str(note["made_for"])
    if note["boot"] != boot_id() and note["host"] != platform.node():
        return Leftover(path, made_for, age_s, f"the host {note['host']} made it and will sweep it")
    if age_s < SWEEP_AFTER_S or (note["mark"] and find_marked(note["mark"])):
        return None
    return Leftover(path, made_for, age_s)


def _without_note(path: Path) -> Leftover | None:
    """Describe a folder without a readable note: it is being made, or an earlier version made it."""
    try:
        age_s = _age_s(os.lstat(path))
    except FileNotFoundError:
        return None
    return Leftover(path, "", age_s, UNKNOWN_MAKER) if age_s > SWEEP_AFTER_S else None


def _age_s(facts: os.stat_result) -> float:
    return time.time() - facts.st_mtime
