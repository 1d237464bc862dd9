"""Which mirrors are still to be told of which runs and rollbacks.

Nothing is queued: what is to be told follows from the reports of runs and the receipts of aliases, and what was told
has a record, created once for each attempt. So a process that is killed at any point loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from data_contracts.deliveries import Delivery
from data_contracts.errors import TrainwrightError
from data_contracts.resolved import Resolved
from infra import registry
from infra.audit import now
from infra.store import Store, layout

FINAL, ALIAS = "final", "alias"
# How many of the newest runs are looked at after each run, and for a model's mirrors.
NEWEST = 20


@dataclass(frozen=True)
class Due:
    """What a mirror is to be told.

    Attributes:
        run_id: of the run, or of the rollback that moved an alias.
        about: the run whose spec names the mirror.
        what: `final`, the number of an attempt, or `alias`.
        alias: `(model, alias)` for `alias`.
        last: the newest attempt to tell it; None if there was none.
    """

    run_id: str
    about: Resolved
    mirror: str
    what: str
    alias: tuple[str, str] | None = None
    last: Delivery | None = None
    attempts: int = 0

    @property
    def sentence(self) -> str:
        """What is due, for a person."""
        subject = f"the rollback of {'@'.join(self.alias)}" if self.alias else f"run {self.run_id}"
        return f"{self.mirror} was not told of {subject}" + (f": {self.last.sentence}" if self.last else " yet")


def due(store: Store, newest: int | None = None) -> list[Due]:
    """What is still to be told, oldest first: of all runs that are kept, or of the newest."""
    names = list(store.list(layout.runs()))
    runs = [found for run_id in names[-newest if newest else None :] if (found := _resolved(store, run_id))]
    mirrored = [one for one in runs if "mirrors" in one.spec]
    return [*(one for run in mirrored for one in due_of_run(store, run)), *_aliases(store, mirrored)]


def due_of_run(store: Store, resolved: Resolved, *, again: bool = False) -> list[Due]:
    """What is still to be told of the newest end of a run; with `again`, also what was told."""
    run_id = resolved.run_id
    if store.exists(layout.report(run_id)):
        what = FINAL
    elif attempts := len(store.list(layout.run_attempts(run_id))):
        what = str(attempts - 1)
    else:
        return []
    return list(_untold(store, resolved, run_id, what, resolved.pipeline().mirrors.names, again=again))


def note(store: Store, one: Due, delivered: bool, sentence: str) -> Due:
    """Record an attempt; returns what was due with it."""
    record = Delivery(delivered=delivered, sentence=sentence, at=now())
    number = one.attempts
    while not store.create_once(layout.delivery(one.run_id, one.mirror, one.what, number), record.to_json()):
        number += 1
    return replace(one, last=record, attempts=number + 1)


def _aliases(store: Store, runs: list[Resolved]) -> Iterator[Due]:
    """Aliases whose newest move was no run's: a rollback. The newest run of the model says which mirrors there are."""
    by_model = {resolved.pipeline().model_name: resolved for resolved in runs}
    for model, resolved in by_model.items():
        for _, alias, _ in (one for one in registry.aliases(store) if one[0] == model):
            mover = registry.newest_mover(store, model, alias)
            if not store.exists(layout.resolved(mover)):
                names = [name for name in resolved.pipeline().mirrors.names if name != "openlineage"]
                yield from _untold(store, resolved, mover, ALIAS, names, (model, alias))


def _untold(
    store: Store,
    about: Resolved,
    run_id: str,
    what: str,
    names: list[str],
    alias: tuple[str, str] | None = None,
    again: bool = False,
) -> Iterator[Due]:
    for mirror in names:
        attempts, last = _newest(store, run_id, mirror, what)
        if again or last is None or not last.delivered:
            yield Due(run_id, about, mirror, what, alias, last, attempts)


def _newest(store: Store, run_id: str, mirror: str, what: str) -> tuple[int, Delivery | None]:
    names = [name for name in store.list(layout.mirrored(run_id, mirror)) if name.startswith(f"{what}-")]
    if not names:
        return 0, None
    path = layout.delivery(run_id, mirror, what, len(names) - 1)
    return len(names), store.find_as(path, Delivery.from_json)


def _resolved(store: Store, run_id: str) -> Resolved | None:
    """A run's inputs; None for a run that was stopped before, or is of a version that cannot be read."""
    try:
        return store.find_as(layout.resolved(run_id), Resolved.from_json)
    except (TrainwrightError, ValueError):
        return None
