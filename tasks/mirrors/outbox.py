"""Finds the runs and rollbacks about which mirrors still need an update, and the rollbacks that Prefect needs.

Nothing is queued: what is to be told follows from the reports of runs and the receipts of aliases, and what was told
has a record, created once for each attempt. So a process that is killed at any point loses nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from data_contracts.alias_moves import ALIAS as CANARY
from data_contracts.canonical import is_name
from data_contracts.errors import TrainwrightError
from data_contracts.operations import Delivery
from data_contracts.resolved import Resolved
from infra.audit import now
from infra.mirrors import ALIAS, newest_delivery, newest_end
from infra.models import canaries, registry
from infra.store import Store, layout
from infra.store.seal import pass_over, passing_over

# How many of the newest runs are looked at after each run, and for a model's mirrors.
NEWEST = 20
# A rollback is an event in Prefect, whichever mirrors a spec names.
PREFECT = "prefect"
# An event of a rollback is not sent later than this: a server keeps its events for a week, and an automation should not
# act on what is long over.
LATEST = timedelta(days=7)


@dataclass(frozen=True)
class Due:
    """An update for a mirror.

    Attributes:
        run_id: of the run, or of the rollback that moved an alias.
        about: the run whose spec names the mirror; None for an event in Prefect.
        what: `final`, the number of an attempt, or `alias`.
        alias: `(model, alias)` for `alias`.
        last: the newest attempt to tell it; None if there was none.
    """

    run_id: str
    about: Resolved | None
    mirror: str
    what: str
    alias: tuple[str, str] | None = None
    last: Delivery | None = None
    attempts: int = 0

    @property
    def resolved(self) -> Resolved:
        """The inputs of the run whose spec names the mirror."""
        assert self.about is not None
        return self.about

    @property
    def sentence(self) -> str:
        """The due update, for a person."""
        subject = f"the rollback of {'@'.join(self.alias)}" if self.alias else f"run {self.run_id}"
        return f"{self.mirror} was not told of {subject}" + (f": {self.last.sentence}" if self.last else " yet")


def due(store: Store, newest: int | None = None) -> list[Due]:
    """The updates still to be sent, oldest first: about all kept runs, or about the newest."""
    names = list(filter(is_name, store.list(layout.runs())))
    runs = [found for run_id in names[-newest if newest else None :] if (found := _resolved(store, run_id))]
    mirrored = [one for one in runs if "mirrors" in one.spec]
    told = (one for run in mirrored for one in due_of_run(store, run))
    return [*told, *_aliases(store, mirrored), *due_events(store)]


def due_of_run(store: Store, resolved: Resolved, *, again: bool = False) -> list[Due]:
    """The updates still to be sent about the newest end of a run; with `again`, also those already sent."""
    run_id = resolved.run_id
    if (what := newest_end(store, run_id)) is None:
        return []
    return list(_untold(store, resolved, run_id, what, resolved.pipeline().mirrors.names, again=again))


def due_events(store: Store, model: str | None = None) -> list[Due]:
    """Ends of the newest runs, and rollbacks of the last days, that Prefect did not take: of one model's or of all.

    An alias that has moved since has none, and a damaged one is left out: `prove` and `show` say what is wrong.
    """
    found = _ends(store)
    for name, alias, _ in registry.aliases(store):
        if model in (None, name):
            try:
                found += _event_of(store, name, alias)
            except TrainwrightError as error:
                pass_over(error)
            except (FileNotFoundError, ValueError):
                pass
    return found


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
            if _is_of_canaries(store, model, alias):  # its version is told once it is promoted
                continue
            mover = registry.newest_mover(store, model, alias)
            if not store.exists(layout.resolved(mover)):
                names = [name for name in resolved.pipeline().mirrors.names if name != "openlineage"]
                yield from _untold(store, resolved, mover, ALIAS, names, (model, alias))


def _ends(store: Store) -> list[Due]:
    """The ends of runs of which a process recorded that Prefect did not take them."""
    found = []
    for run_id in list(filter(is_name, store.list(layout.mirrored())))[-NEWEST:]:
        with contextlib.suppress(TrainwrightError, ValueError):
            what = newest_end(store, run_id) if PREFECT in store.list(layout.mirrored(run_id)) else None
            attempts, last = (0, None) if what is None else newest_delivery(store, run_id, PREFECT, what)
            if what is not None and last is not None and not last.delivered:
                found.append(Due(run_id, None, PREFECT, what, None, last, attempts))
    return found


def _event_of(store: Store, model: str, alias: str) -> list[Due]:
    newest = registry.newest_move(store, model, alias)
    if newest is None or newest[0].incident is None:
        return []
    mover, at = str(newest[1].get("run_id", "")), datetime.fromisoformat(str(newest[1].get("finished", "")))
    if datetime.now(UTC) - at > LATEST:
        return []
    return list(_untold(store, None, mover, ALIAS, [PREFECT], (model, alias)))


def _is_of_canaries(store: Store, model: str, alias: str) -> bool:
    found = registry.read_alias(store, model, alias) if alias == CANARY else None
    return found is not None and canaries.is_of_canaries(store, found[0])


def _untold(
    store: Store,
    about: Resolved | None,
    run_id: str,
    what: str,
    names: list[str],
    alias: tuple[str, str] | None = None,
    again: bool = False,
) -> Iterator[Due]:
    for mirror in names:
        attempts, last = newest_delivery(store, run_id, mirror, what)
        if again or last is None or not last.delivered:
            yield Due(run_id, about, mirror, what, alias, last, attempts)


def _resolved(store: Store, run_id: str) -> Resolved | None:
    """A run's inputs; None for a run that was stopped before, or is of a version that cannot be read."""
    with contextlib.suppress(TrainwrightError, ValueError), passing_over():
        found = store.find_as(layout.resolved(run_id), Resolved.from_json)
        if found is not None and "mirrors" in found.spec:
            found.pipeline()
        return found
    return None
