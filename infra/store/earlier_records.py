"""Accept records of schema 1, which carry no digest, only if an earlier Trainwright can have written them.

Some records are always written before others: the store's own `store.json`, a run's resolved inputs, a generation's
launch. If such a record has the newest schema, a later record of schema 1 is not genuine.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from dataclasses import dataclass, field

from infra.store import layout
from infra.store.backends.backend import Backend
from infra.store.records import SCHEMA, corrupt, read_record

log = logging.getLogger("trainwright")


class EarlierRecords:
    """Decides whether records of schema 1 in one store are accepted.

    Args:
        all_newer: whether the store was made by a Trainwright that writes no such records.
    """

    def __init__(self, backend: Backend, *, all_newer: bool) -> None:
        self._backend, self._all_newer = backend, all_newer

    def check(self, path: str) -> None:
        """Accept a record of schema 1 with one warning for each store; CorruptError if it cannot be genuine."""
        witness = layout.STORE if self._all_newer else self._witness(path)
        if witness is not None:
            raise corrupt(path, f"has schema 1, although {witness} shows that it was written by a later version")
        _warn_of(_Earlier(self._backend.uri, path))

    def _witness(self, path: str) -> str | None:
        """A record of a newer schema that existed before `path` was written; None if there is none."""
        for one in self._before(path):
            with contextlib.suppress(FileNotFoundError):
                if read_record(one, self._backend.read(one)[0])[1] == SCHEMA:
                    return one
        return None

    def _before(self, path: str) -> list[str]:
        """Records that are written before `path`, so the schema of `path` is at least as new as theirs."""
        match path.split("/"):
            case ["runs", run_id, *_] if path != layout.resolved(run_id):
                return [layout.resolved(run_id)]
            case ["trainings", name, "checkpoints", mark] if (parts := layout.split_checkpoint(mark)) and parts[2]:
                return [layout.launch(f"trainings/{name}", parts[1])]
            case ["trainings", name, folder, "launch.json"] if (number := layout.split_generation(folder)) is not None:
                return self._launches(f"trainings/{name}", number)
            case ["trainings", name, folder, _, *_] if (number := layout.split_generation(folder)) is not None:
                return [layout.launch(f"trainings/{name}", number)]
            case ["trainings", name, _]:
                return self._launches(f"trainings/{name}")
        return []

    def _launches(self, training: str, before: float = math.inf) -> list[str]:
        found = map(layout.split_generation, self._backend.names(training, "g"))
        return [layout.launch(training, number) for number in found if number is not None and number < before]


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
