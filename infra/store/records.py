"""Records: the JSON files of a store outside sealed directories. Pointers: records that are moved by compare-and-set.

    {…,"schema":2,"path":"runs/…/report.json","digest":"…"}

The digest is the SHA-256 of all bytes before `,"digest":`. `path` is the record's own path in the store, so that a
record that was moved to another path is recognised.

Records of schema 1 carry neither; they are accepted only in a store that an earlier Trainwright made, as its
`store.json` says.

A pointer is one of the few small files that change. It counts its versions, so a value that is written again is not
mistaken for the earlier write. If the answer of the store is lost, the backend reads the object back to find out
whether the write succeeded.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from data_contracts.canonical import plain
from data_contracts.errors import CorruptError, UsageError
from data_contracts.foreign_files import MAX_DEPTH, TooDeep, parse_json
from infra.store import layout
from infra.store.backend import MAX_READ_BYTES, Backend, Overtaken, Stale, warn_overtaken

log = logging.getLogger("trainwright")
SCHEMA = 2
# Resolved inputs with some hundred thousand files are smaller.
MAX_BYTES = MAX_READ_BYTES
_MAX_DIGITS = 100
_TAIL = re.compile(rb',"digest":"([0-9a-f]{64})"}\Z')
# Half of a character outside the first plane, escaped: alone it cannot be printed or stored.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
T = TypeVar("T")
# Errors that parsing JSON of an unexpected form may raise.
_UNFIT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def write_record(path: str, value: Mapping[str, object]) -> bytes:
    """The bytes of the record `path`; its value includes `schema` or `schema_version`.

    ValueError for values that JSON cannot hold, for values nested deeper than MAX_DEPTH, or for the names `path` and
    `digest`.
    """
    if value.keys() & {"path", "digest"}:
        raise ValueError("a record's own 'path' and 'digest' are given by the store")
    if not _is_shallow(value):
        raise ValueError(f"a record is nested deeper than {MAX_DEPTH} levels")
    body = plain({**value, "path": path})[:-1]
    return body + b',"digest":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def read_record(path: str, data: bytes, newest: int = SCHEMA, kind: str = "a record") -> tuple[dict[str, Any], int]:
    """The value of the record `path`, and its schema.

    Args:
        newest: the schema that is written now, which is also the first with a digest.
        kind: what the file should be, for the error message.

    Raises: CorruptError naming the file for any damage, UsageError for a newer schema.
    """
    tail = _TAIL.search(data)
    if tail is not None and hashlib.sha256(data[: tail.start()]).hexdigest() != tail[1].decode():
        raise corrupt(path, "was changed after it was written")
    value = read_strictly(path, data, "JSON" if kind == "a record" else kind)
    schema = value.get("schema_version", value.get("schema", 1)) if isinstance(value, dict) else None
    if not isinstance(schema, int) or schema < 1:
        raise corrupt(path, f"is not {kind}")
    if schema > newest:
        raise UsageError(
            f"{path} has schema {schema}, newer than the {newest} that this Trainwright reads.",
            remedy="Upgrade Trainwright.",
        )
    if (schema == newest) != (tail is not None):
        raise corrupt(path, f"has schema {schema}, but {'has no digest' if tail is None else 'carries a digest'}")
    if tail is not None:
        del value["digest"]
        if (place := value.pop("path", None)) != path:
            raise corrupt(path, f"holds the record that was written as {place}")
    return value, schema


def read_strictly(path: str, data: bytes, kind: str = "JSON") -> Any:
    """JSON as we write it: UTF-8, finite numbers, no key twice, at most MAX_BYTES and MAX_DEPTH; else CorruptError."""
    if len(data) > MAX_BYTES:
        raise corrupt(path, "is larger than any record")
    try:
        value = parse_json(
            data,
            object_pairs_hook=_without_repetition,
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_bounded,
        )
        if _SURROGATE.search(data):
            plain(value)
    except TooDeep as error:
        raise corrupt(path, f"is nested deeper than {MAX_DEPTH} levels") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise corrupt(path, f"is not {kind}") from error
    return value


def parsed(path: str, parse: Callable[[Any], T], value: Any, what: str = "") -> T:
    """`parse(value)`; CorruptError saying that the file is not `what`, if the value cannot be parsed."""
    try:
        return parse(value)
    except _UNFIT as error:
        raise corrupt(
            path, f"is not {what}" if what else f"is not the record that belongs there ({_said(error)})"
        ) from error


def corrupt(path: str, what: str) -> CorruptError:
    """The error for a file of the store that is not as it was written."""
    return CorruptError(f"{path} {what}.", details={"file": path})


def _said(error: BaseException) -> str:
    """An error in one line: pydantic's message has several."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:200]}".rstrip(". ")


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inside = [
            one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list | tuple)
        ]
        level = [child for children in inside for child in children]
        if not level:
            return True
    return False


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has a key twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not finite")
    return value


def _bounded(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(text)


class EarlierRecords:
    """Decides whether records of schema 1 in one store are accepted.

    Args:
        all_newer: whether the store was made by a Trainwright that writes no such records.
    """

    def __init__(self, uri: str, *, all_newer: bool) -> None:
        self._uri, self._all_newer = uri, all_newer

    def check(self, path: str) -> None:
        """Accept a record of schema 1 with one warning for each store; CorruptError if it cannot be genuine."""
        if self._all_newer:
            raise corrupt(path, f"has schema 1, although {layout.STORE} shows that it was written by a later version")
        _warn_of(_Earlier(self._uri, path))


@dataclass(frozen=True)
class _Earlier:
    """A warning about records of schema 1. Warnings of one store are equal: one warning is about all records."""

    store_uri: str
    path: str = field(compare=False)


@functools.cache
def _warn_of(record: _Earlier) -> None:
    """Warn once for each store: a command opens its store more than once."""
    log.warning(
        "%s in the store %s was written by an earlier Trainwright: it carries no digest, so damage to it may not "
        "be noticed. Records that are written from now on carry a digest.",
        record.path,
        record.store_uri,
    )


# A lease, a checkpoint's reference and an alias are a thousand times smaller.
MAX_POINTER_BYTES = 2**20


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
        if len(data) > MAX_POINTER_BYTES:
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
