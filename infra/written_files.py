"""The files that commands write where a person names them: a list in the state folder, so that none is taken for code.

    written.json    [{"path", "bytes", "blake3", "facts"}, …], the latest last

A file whose bytes were changed since then is its user's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from data_contracts.errors import UsageError
from data_contracts.records import Record
from infra.files import file_digest, locked, replace_private
from infra.settings import on_this_machine, state_folder

LIST = "written.json"
_MOST_ENTRIES = 5_000


class WrittenFile(Record):
    """A file as a command wrote it.

    Attributes:
        facts: device, inode, size and time of change, by which it is recognised under another name.
    """

    path: str
    bytes: int
    blake3: str
    facts: tuple[int, ...]


_ENTRIES = TypeAdapter(list[WrittenFile])


def record_written(path: Path, *, named: Path | None = None) -> None:
    """Add a file that a command has written to the list; what is not a regular file is ignored.

    Args:
        named: the name that the file at `path` is about to get; default: `path`.
    """
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        return
    place = os.path.realpath(named or path)
    entry = WrittenFile(path=place, bytes=facts.st_size, blake3=file_digest(path), facts=_facts(facts))
    folder = state_folder()
    with on_this_machine(folder), locked(folder):  # of two processes at once, neither loses the other's entry
        others = [other for other in _entries() if other.path != place]
        replace_private(folder / LIST, _ENTRIES.dump_json([*others, entry][-_MOST_ENTRIES:]).decode())


class WrittenFiles:
    """The list, as it is now."""

    def __init__(self) -> None:
        entries = _entries()
        self._by_path = {entry.path: entry for entry in entries}
        self._facts = {entry.facts for entry in entries}

    def has(self, path: Path) -> bool:
        """Whether a file is as a command wrote it, perhaps under another name."""
        if not path.is_file():
            return False
        facts, entry = path.stat(), self._by_path.get(os.path.realpath(path))
        return _facts(facts) in self._facts or (
            entry is not None and entry.bytes == facts.st_size and entry.blake3 == file_digest(path)
        )

    def had(self, path: Path) -> bool:
        """Whether a command wrote a file with this path, whatever it holds now."""
        return os.path.realpath(path) in self._by_path


def _entries() -> list[WrittenFile]:
    path = state_folder() / LIST
    try:
        return _ENTRIES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValidationError) as error:
        raise UsageError(
            f"{path}, the list of the files that commands wrote, cannot be read.",
            remedy="Remove it. The files that it named may then be packed as code unless Git ignores them.",
        ) from error


def _facts(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
