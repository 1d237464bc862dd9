"""Pointers: the few small files of a store that change, each by compare-and-set.

A pointer counts its versions, so a value that comes back is not mistaken for the one that was read before. What is
lost between the store and us (an answer that never arrives) is settled below, by reading back; see `s3.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, UsageError
from infra.store import layout
from infra.store.backend import Backend, Stale

SCHEMA = 1


@dataclass(frozen=True)
class Versioned:
    """A pointer's value as it was read: the `version` (from 1) and the store's `tag` stand for this very write."""

    value: Any
    version: int
    tag: str


class PointerMoved(Exception):
    """A compare-and-set lost. `current` is what the pointer holds now, or None if it is gone."""

    def __init__(self, path: str, current: Versioned | None) -> None:
        super().__init__(f"{path} was moved by another")
        self.path = path
        self.current = current


class Pointer:
    """A small JSON value at a path, moved by one writer at a time."""

    def __init__(self, backend: Backend, path: str) -> None:
        self._backend = backend
        self.path = layout.check_path(path)

    def read(self) -> Versioned | None:
        """What it holds, or None. CorruptError if it is no pointer, UsageError if its schema is newer."""
        try:
            data, tag = self._backend.read(self.path)
        except FileNotFoundError:
            return None
        try:
            stored = json.loads(data)
            schema, value, version = stored["schema"], stored["value"], stored["version"]
            newer = schema > SCHEMA
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{self.path} is not a pointer.", details={"file": self.path}) from error
        if newer:
            raise UsageError(
                f"{self.path} has schema {schema}, newer than the {SCHEMA} that this Trainwright reads.",
                remedy="Upgrade Trainwright.",
            )
        return Versioned(value, version, tag)

    def create(self, value: Any) -> Versioned:
        """Make it hold `value`. PointerMoved if it holds something."""
        try:
            return Versioned(value, 1, self._backend.create(self.path, _body(value, 1)))
        except FileExistsError as error:
            raise PointerMoved(self.path, self.read()) from error

    def swap(self, expected: Versioned | None, value: Any) -> Versioned:
        """Make it hold `value` if it still holds what `expected` was read as (None: nothing). PointerMoved."""
        if expected is None:
            return self.create(value)
        version = expected.version + 1
        try:
            return Versioned(value, version, self._backend.replace(self.path, _body(value, version), expected.tag))
        except Stale as error:
            raise PointerMoved(self.path, self.read()) from error


def _body(value: Any, version: int) -> bytes:
    return canonical({"schema": SCHEMA, "value": value, "version": version})
