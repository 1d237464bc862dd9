"""Pointers: the few small files of a store that change, each by compare-and-set.

A pointer counts its versions, so a value that is written again is not mistaken for the earlier write. If the answer of
the store is lost, the backend reads the object back to find out whether the write succeeded; see `s3.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data_contracts.errors import CorruptError
from infra.store import layout
from infra.store.backend import Backend, Overtaken, Stale, warn_overtaken
from infra.store.records import SCHEMA, EarlierRecords, read_record, write_record

# A lease, a checkpoint's reference and an alias are a thousand times smaller.
MAX_BYTES = 2**20


@dataclass(frozen=True)
class Versioned:
    """A pointer's value as it was read.

    Attributes:
        version: counts from 1; together with the store's `tag`, which covers all bytes, it identifies one write.
        schema: schema of the record that was read; every move writes the newest.
    """

    value: Any
    version: int
    tag: str
    schema: int = SCHEMA


class PointerMoved(Exception):
    """A compare-and-set lost. `current` is what the pointer holds now, or None if it is gone."""

    def __init__(self, path: str, current: Versioned | None) -> None:
        super().__init__(f"{path} was moved by another")
        self.path = path
        self.current = current


class Pointer:
    """A small JSON value at a path, moved by one writer at a time."""

    def __init__(self, backend: Backend, path: str, earlier: EarlierRecords) -> None:
        self._backend, self._earlier = backend, earlier
        self.path = layout.check_path(path)

    def read(self) -> Versioned | None:
        """The pointer's value, or None. CorruptError if the file is not a pointer, UsageError for a newer schema."""
        try:
            data, tag = self._backend.read(self.path)
        except FileNotFoundError:
            return None
        if len(data) > MAX_BYTES:
            raise CorruptError(f"{self.path} is larger than any pointer.", details={"file": self.path})
        record, schema = read_record(self.path, data, kind="a pointer")
        if record.keys() != {"schema", "value", "version"} or type(record["version"]) is not int:
            raise CorruptError(f"{self.path} is not a pointer.", details={"file": self.path})
        if schema < SCHEMA:
            self._earlier.check(self.path)
        return Versioned(record["value"], record["version"], tag, schema)

    def create(self, value: Any) -> Versioned:
        """Create the pointer with `value`. PointerMoved if it exists."""
        try:
            return Versioned(value, 1, self._backend.create(self.path, self._record(value, 1)))
        except FileExistsError as error:
            raise self._lost(error, 1) from error

    def swap(self, expected: Versioned | None, value: Any) -> Versioned:
        """Set `value` if the pointer is still as `expected` was read (None: does not exist); else PointerMoved."""
        if expected is None:
            return self.create(value)
        version = expected.version + 1
        try:
            tag = self._backend.replace(self.path, self._record(value, version), expected.tag)
            return Versioned(value, version, tag)
        except Stale as error:
            raise self._lost(error, version) from error

    def _lost(self, error: Exception, version: int) -> PointerMoved:
        """What a lost write raises.

        One that was confirmed may have been followed by a later one, or overwritten before that: the pointer does not
        say which, so it counts as lost.
        """
        current = self.read()
        if isinstance(error, Overtaken) and (current is None or current.version <= version):
            warn_overtaken(self._backend.uri, self.path)
        return PointerMoved(self.path, current)

    def _record(self, value: Any, version: int) -> bytes:
        return write_record(self.path, {"schema": SCHEMA, "value": value, "version": version})
