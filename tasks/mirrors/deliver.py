"""Sends mirrors their due updates, within a time; a failure is one log line and a record, and changes no verdict.

Nothing is queued: what is to be told follows from the reports of runs and the receipts of aliases, and what was told
has a record, created once for each attempt. So a process that is killed at any point loses nothing. Prefect's
automations are told how a run ended; an end that the server did not take is told when it is back.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from data_contracts.canonical import is_name
from data_contracts.errors import StorageUnavailable, TrainwrightError, UsageError
from data_contracts.pipeline_spec.operations import MlflowSpec
from data_contracts.quoting import as_sentence
from data_contracts.records import Delivery
from data_contracts.resolved import Resolved
from infra import mirrors
from infra.mirrors import (
    ALIAS,
    PREFECT,
    TRIED,
    Deadline,
    Endpoint,
    Mlflow,
    credentials,
    newest_delivery,
    newest_end,
    record_delivery,
)
from infra.models import registry
from infra.orchestrator.events import announce_rollback
from infra.orchestrator.server import connect_if_running
from infra.store import Store, layout
from infra.store.lease import LeaseKeeper
from infra.store.seal import pass_over, passing_over
from tasks.mirrors.updates import mlflow_run, put_version
from tasks.pages.facts import facts_of
from tasks.run.executions import newest_execution
from tasks.run.report import latest_report
from tasks.run.resolve import find_inputs
from tasks.run.run import Run
from tasks.stages.artifacts import announce

# How many of the newest runs are looked at after each run, and for a model's mirrors.
NEWEST = 20
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
    return [
        *(one for run in mirrored for one in due_of_run(store, run)),
        *_aliases(store, mirrored),
        *due_events(store),
    ]


def sentences_due(store: Store) -> list[str]:
    """The updates still to be sent about a store's newest runs, for a person."""
    return [one.sentence for one in due(store, NEWEST)]


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


def note(store: Store, update: Due, delivered: bool, sentence: str) -> Due:
    """Record an attempt; returns what was due with it."""
    record, attempts = record_delivery(
        store, update.run_id, update.mirror, update.what, update.attempts, delivered=delivered, sentence=sentence
    )
    return replace(update, last=record, attempts=attempts)


def _aliases(store: Store, runs: list[Resolved]) -> Iterator[Due]:
    """Aliases whose newest move was no run's: a rollback. The newest run of the model says which mirrors there are."""
    by_model = {resolved.pipeline().model_name: resolved for resolved in runs}
    for model, resolved in by_model.items():
        for _, alias, _ in (one for one in registry.aliases(store) if one[0] == model):
            mover = registry.newest_mover(store, model, alias)
            if not store.exists(layout.resolved(mover)):
                yield from _untold(store, resolved, mover, ALIAS, resolved.pipeline().mirrors.names, (model, alias))


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
        found = find_inputs(store, run_id)
        if found is not None and "mirrors" in found.spec:
            found.pipeline()
        return found
    return None


# How long a run without mirrors may take to tell Prefect of an earlier rollback.
EVENTS_S = 10.0
# How long a run waits at its start for the servers that are its mirrors.
TRY_S = 5.0
log = logging.getLogger("trainwright")


def try_mirrors(run: Run) -> None:
    """Try the credentials of a run's mirrors before any work; a server that does not answer refuses nothing.

    Raises: UsageError: a credential is not set, or a server refuses it.
    """
    if run.spec.mirrors.mlflow is None:
        return
    with _mlflow_server(run.spec.mirrors.mlflow, Deadline(TRY_S)) as server:
        try:
            server.try_credentials(TRIED)
        except StorageUnavailable as error:
            log.warning("%s The run begins without it, and tells it at its end.", error.message)


def tell_after_run(run: Run) -> None:
    """Send the updates about a run that has ended, and those due from before, as far as `mirrors.wait_s` allows."""
    if not run.recorded:
        return
    if not run.spec.mirrors.names:
        tell_quietly(run.store, EVENTS_S, lambda: due_events(run.store, run.spec.model_name))
        return
    try:
        # This user ran it, so its mirrors may be told from now on.
        mirrors.accept(*(_identity(run.resolved, name) for name in run.spec.mirrors.names))
    except Exception as error:  # the run has ended, and a refused update stays due
        log.warning("The mirrors of this run could not be noted (%s).", type(error).__name__)
    tell_quietly(run.store, run.spec.mirrors.wait_s)


def accept_places(run: Run, places: Sequence[str]) -> None:
    """Let those of a run's mirrors be told from now on whose places this user names; UsageError for another place.

    To name the run is not enough: its record may have been changed since.
    """
    named = {name: run.spec.mirrors.place(name) for name in run.spec.mirrors.names}
    if strange := [place for place in places if place not in named.values()]:
        raise UsageError(
            f"--accept: the run {run.run_id} has no mirror at {strange[0]!a}.",
            remedy=f"It has {' and '.join(f'{place!a}' for place in named.values())}.",
        )
    mirrors.accept(*(_identity(run.resolved, name) for name, place in named.items() if place in places))


def tell_quietly(store: Store, wait_s: float, find: Callable[[], Sequence[Due]] | None = None) -> None:
    """Send the updates that `find` returns, or those due about a store's newest runs; a failure is a log line."""
    try:
        for one in tell(store, find or (lambda: due(store, NEWEST)), Deadline(wait_s)):
            log.warning("%s", as_sentence(one.sentence))
    except Exception as error:  # the run has ended; the text may quote a value
        log.warning("The mirrors were not told (%s); `trainwright mirror` tells them.", type(error).__name__)


def tell_ends(store: Store) -> None:
    """Send Prefect's events that are due about a store; a failure is a log line."""
    tell_quietly(store, EVENTS_S, lambda: due_events(store))


def tell(
    store: Store,
    find: Callable[[], Sequence[Due]],
    deadline: Deadline,
    on_told: Callable[[Due], None] = lambda one: None,
) -> list[Due]:
    """Tell the mirrors what `find` returns, once this process alone tells them; returns what remains due.

    A mirror that does not answer is not asked again in this call.

    Args:
        on_told: called with each that was told; its newest attempt says what was sent where.
    """
    if not (found := find()):
        return []
    keeper = LeaseKeeper(store, layout.telling(), f"mirrors/{uuid.uuid4().hex[:12]}")
    left: list[Due] = []
    away: set[str] = set()
    try:
        keeper.start()
        if keeper.token(deadline.left_s()) is None:
            return list(found)  # another process tells them
        # MLflow is told last: an export takes seconds, which the others would lack.
        for one in sorted(find(), key=lambda one: one.mirror == "mlflow"):
            keeper.check()
            if one.mirror in away or not deadline.left_s():
                left.append(one)
                continue
            told, answers = _tell(store, one, deadline)
            away |= set() if answers else {one.mirror}
            if told.last is not None and told.last.delivered:
                on_told(told)
            else:
                left.append(told)
    finally:
        keeper.stop()
    return left


def _tell(store: Store, update: Due, deadline: Deadline) -> tuple[Due, bool]:
    """What was due with its newest attempt, and whether the mirror answers."""
    try:
        if update.mirror == PREFECT:  # its address is this process's own, and never the store's
            sentence = _prefect(store, update)
        else:
            _refuse_unknown(update)
            sentence = _mlflow(store, update, deadline)
    except TrainwrightError as error:
        return note(store, update, False, str(error)), isinstance(error, UsageError)
    except Exception as error:  # of a library; the text may quote a value
        why = f"It failed with {type(error).__name__}. `trainwright mirror` tells it again."
        return note(store, update, False, why), False
    log.info("%s: %s", update.mirror, sentence)
    return note(store, update, True, sentence), True


def _identity(about: Resolved, mirror: str) -> dict[str, object]:
    """Everything that identifies a mirror's place and the credentials for it."""
    return {"mirror": mirror, "settings": about.pipeline().mirrors.model_dump(mode="json")[mirror], "root": None}


def _refuse_unknown(update: Due) -> None:
    """UsageError for a mirror that only the store names: its writers may not choose where credentials and lines go."""
    identity = _identity(update.resolved, update.mirror)
    if mirrors.is_accepted(identity):
        return
    section = identity["settings"] if isinstance(identity["settings"], dict) else {}
    place = update.resolved.pipeline().mirrors.place(update.mirror)
    command = shlex.join(["trainwright", "mirror", update.resolved.run_id, "--accept", place])
    names = ", ".join(section[name] for name in ("username", "password", "token") if section.get(name))
    raise UsageError(
        f"{place!a}{f' (with {names})' if names else ''} is named in the store, and no run of this user "
        "on this machine was sent there.",
        remedy=f"If it is yours, `{command}` tells it, and from then on everything is.",
    )


def _mlflow(store: Store, update: Due, deadline: Deadline) -> str:
    spec = update.resolved.pipeline().mirrors.mlflow
    assert spec is not None
    with _mlflow_server(spec, deadline) as endpoint:
        server = Mlflow(endpoint)
        if update.alias is not None:
            return _put_alias(store, server, *update.alias)
        run = Run(update.resolved, store)
        facts = facts_of(run)
        report = facts.report
        assert report is not None, "only ends are due"
        kept = server.put_run(mlflow_run(facts, report, spec.experiment or run.spec.name))
        sentence = f"run {report.run_id} is {kept.id} in MLflow"
        model = report.model
        if report.verdict != "promoted" or model is None or model.version is None or model.alias is None:
            return sentence
        number = put_version(store, server, kept, report, deadline, spec.model)
        named = _put_alias(store, server, model.name, model.alias)
        return f"{sentence}, {model.name} version {model.version} is {number}, and {named}"


def _mlflow_server(spec: MlflowSpec, deadline: Deadline) -> Endpoint:
    access = credentials(
        "mirrors.mlflow", spec.uri, {"username": spec.username, "password": spec.password, "token": spec.token}
    )
    return Endpoint("MLflow", spec.uri, access, deadline)


def _put_alias(store: Store, server: Mlflow, model: str, alias: str) -> str:
    """Make MLflow's alias name what ours names, and look again: it may have moved meanwhile."""
    while True:
        named = registry.read_alias(store, model, alias)
        if named is None:
            return f"{model}@{alias} names nothing"
        number = server.find_version(model, named[1])
        if number is None:
            raise UsageError(
                f"MLflow does not have version {named[1]} of {model}.",
                remedy="Tell it of the run that made it: `trainwright mirror RUN`.",
            )
        server.put_alias(model, alias, number)
        if registry.read_alias(store, model, alias) == named:
            return f"{model}@{alias} is {number} in MLflow"


def _prefect(store: Store, update: Due) -> str:
    """Emit the event of a rollback, or of a run's end, to the server that this process would use; starts none."""
    context = sys.modules.get("prefect.context")  # imported here, Prefect would read its settings too early
    in_flow = context is not None and context.FlowRunContext.get() is not None
    if not in_flow and not connect_if_running():
        raise StorageUnavailable(
            "no Prefect server runs here.", remedy="`trainwright up` starts one, or the next run tells it."
        )
    if update.alias is None:
        return _tell_end(store, update.run_id)
    newest = registry.newest_move(store, *update.alias)
    if newest is None or newest[1].get("run_id") != update.run_id:
        return f"{'@'.join(update.alias)} has moved on since"
    receipt, about = newest
    announce_rollback(receipt, str(about.get("actor", "")), datetime.fromisoformat(str(about["finished"])))
    return f"the rollback of {'@'.join(update.alias)} is an event in Prefect"


def _tell_end(store: Store, run_id: str) -> str:
    report, begun = latest_report(store, run_id), newest_execution(store, run_id)
    assert report is not None, "only ends are due"
    if not announce(report, None if begun is None else begun.flow_run):
        raise StorageUnavailable("the Prefect server did not take it.", remedy="The next run tells it.")
    return f"the end of run {run_id} is an event in Prefect"
