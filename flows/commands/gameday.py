"""`gameday`: inject the faults of docs/recovery.md into short trainings of a pipeline, and say what came of each.

One training after another is carried out in a store of the game day's own, first without a fault, then with each.

`python -m flows.commands.gameday REQUEST` is one training, in a process that can be killed. REQUEST is a `GameTraining`
as JSON. The last line that it prints is the checkpoint, or the error. Nodes of a work pool need a flow run above them,
whose id is the first line; on this machine, it does without Prefect.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from data_contracts.errors import Cancelled, PromiseBroken, TrainwrightError, UsageError
from data_contracts.handoffs import Checkpoint
from data_contracts.load import load_spec
from data_contracts.messages.gang import GameTraining
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.pipeline_spec.contract import length_of
from flows.commands.guard import Answer, log
from flows.commands.reports import write_page
from flows.commands.server import connect
from flows.commands.terminal import table
from infra.orchestrator.resuming import refuse_without_consent
from infra.processes.processes import terminable
from infra.quantities import duration
from infra.store import Store, absolute_address
from infra.store.opening import own_store
from infra.usage import cost
from infra.weights import first_difference
from tasks.gameday import (
    NOT_TRIED,
    OUTCOME_COLUMNS,
    OUTCOME_NUMBERS,
    STEPS,
    ConductedTraining,
    Fault,
    Outcome,
    TimeUsed,
    broken,
    chosen,
    game_day_page,
    judged,
    keeps_weights,
    kept_all,
    not_injected,
    not_tried,
    outcome_row,
    own_overrides,
    read_timeline,
    refuse_by_store,
    train_once,
    why_not,
)
from tasks.policies import run_tags
from tasks.run.report import cost_sentence
from tasks.run.resolve import run_prices
from tasks.run.run import new_run_id
from tasks.run.spec_check import LoadedSpec, read_spec


def gameday(arguments: argparse.Namespace) -> Answer:
    """The `gameday` command: without `--yes` it only says what it would do; exit code 3 if a promise is not kept."""
    if arguments.list:
        return _listed()
    if arguments.spec is None:
        raise UsageError(
            "gameday needs a pipeline spec.", remedy="Name it: `trainwright gameday SPEC`, or give --list."
        )
    path, at_most_s = Path(arguments.spec).resolve(), _seconds(arguments.at_most)
    name = load_spec(path, arguments.set).name
    overrides = [*arguments.set, *own_overrides(name)]
    loaded = read_spec(path, overrides)
    spec = loaded.spec
    wanted = chosen(arguments.only)
    named = arguments.store is not None
    uri = absolute_address(arguments.store) if named else absolute_address(spec.store.uri, path.parent)
    left_out: dict[str, str] = {fault.name: why_not(fault, spec, in_folder="://" not in uri) for fault in wanted}
    tried = [fault for fault in wanted if not left_out[fault.name]]
    if not tried:
        said = "; ".join(f"{fault}: {why}" for fault, why in left_out.items())
        raise UsageError(f"This pipeline can try none of the faults. {said}.", remedy="`--list` names all faults.")
    refuse_by_store(uri, None if named else spec.store.pointers, name, spec, path, at_most_s)
    _refuse_without_consent(spec)
    if not arguments.yes:
        return _preview(spec, tried, left_out, at_most_s)
    loaded.check(arguments.window)
    day = GameDay(str(path), overrides, arguments.window, spec, time.monotonic() + at_most_s)
    began, started = datetime.now(UTC), time.monotonic()
    with terminable(), own_store(uri, spec.store.storage_options, new_run_id()) as store:
        outcomes = carry_out(day, store, tried)
    outcomes += [not_tried(fault, left_out[fault.name]) for fault in wanted if left_out[fault.name]]
    return _answer(name, outcomes, began, time.monotonic() - started)


def _refuse_without_consent(spec: PipelineSpec) -> None:
    """UsageError if the nodes run on a work pool whose owner has not agreed to game days."""
    if spec.train.pool is None:
        return
    if spec.train.launcher != "work-pool":
        raise UsageError(
            f"train.launcher: a game day runs on a work pool or on this machine, not by {spec.train.launcher}.",
            remedy="Add --set train.launcher=local --set train.pool=null.",
        )
    connect("cli")
    refuse_without_consent(spec.train.pool)


def _seconds(text: str) -> float:
    try:
        seconds = length_of(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"--at-most: {error}.", remedy="Give a time such as 30m.") from error
    if not 60 <= seconds <= 86_400:
        raise UsageError(f"--at-most: {text} is not between 1m and 1d.", remedy="Give a time such as 30m.")
    return seconds


def _listed() -> Answer:
    faults = chosen(None)
    rows = [(fault.name, fault.what, _promise(fault)) for fault in faults]
    left = [(name, "not tried", why) for name, why in NOT_TRIED.items()]
    value = {
        "faults": [{"name": one.name, "what": one.what, "promise": _promise(one)} for one in faults],
        "not_tried": NOT_TRIED,
    }
    return Answer(table(["fault", "what is done", "noticed"], [*rows, *left]), value)


def _promise(fault: Fault) -> str:
    if fault.name == "rank-hung":
        return "15 s after train.hang_timeout_s"
    words = {"rank-asked-to-stop": "at the next step", "checkpoint-damaged": "before the first step"}
    return f"within {fault.within_s:g} s" if fault.within_s else words.get(fault.name, "when it is started again")


def _preview(spec: PipelineSpec, tried: list[Fault], left_out: dict[str, str], at_most_s: float) -> Answer:
    """What a game day would do, and the most that it can cost."""
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    most = cost_sentence(cost(at_most_s * spec.train.nodes, run_prices(spec, day)["price"]))
    place = f"the work pool {spec.train.pool}" if spec.train.pool else "this machine"
    nodes = f"{spec.train.nodes} {'node' if spec.train.nodes == 1 else 'nodes'} of {spec.train.devices}"
    lines = [
        f"A game day would train {spec.name} {1 + len(tried)} times for {STEPS} steps, on {place}: {nodes} "
        f"{'rank' if spec.train.devices == 1 else 'ranks'}.",
        f"It ends after {duration(at_most_s)} at the latest. The most that its nodes can cost: {most}.",
        "",
        table(["fault", "what is done"], [(fault.name, fault.what) for fault in tried]),
        *(f"{name}  not tried: {why}" for name, why in left_out.items() if why),
        "",
        "Nothing was done. With --yes it begins.",
    ]
    value: dict[str, object] = {
        "would_try": [fault.name for fault in tried],
        "not_tried": {name: why for name, why in left_out.items() if why},
        "at_most_s": at_most_s,
        "cost_at_most": most,
    }
    return Answer("\n".join(lines), value)


def _answer(name: str, outcomes: list[Outcome], began: datetime, took_s: float) -> Answer:
    page = write_page(game_day_page(name, outcomes, began, took_s).encode(), None, f"{new_run_id()}-gameday")
    error = _error(name, outcomes)
    lines = [
        table(
            OUTCOME_COLUMNS,
            [outcome_row(one) for one in outcomes],
            right=[OUTCOME_COLUMNS[at] for at in OUTCOME_NUMBERS],
        ),
        "",
        f"page: {page}",
    ]
    if error is not None:
        lines.append(f"\n{error}")
    log.info("The game day took %s.", duration(took_s))
    value = {
        "pipeline": name,
        "began": began.isoformat(timespec="seconds"),
        "seconds": round(took_s, 1),
        "faults": [asdict(one) for one in outcomes],
        "page": str(page),
    }
    return Answer("\n".join(lines), value, 0 if error is None else error.exit_code, error)


def _error(name: str, outcomes: Sequence[Outcome]) -> PromiseBroken | None:
    """What the command ends with, if not every promise was kept or no fault was injected."""
    if kept_all(outcomes):
        return None
    missing = [one.fault for one in outcomes if one.verdict == "not injected"]
    struck = [fault for fault in broken(outcomes) if fault not in missing]
    if struck or len(missing) < len(outcomes):
        parts = [("not as promised", struck), ("not injected", missing)]
        told = "; ".join(f"{verdict}: {', '.join(faults)}" for verdict, faults in parts if faults)
        return PromiseBroken(f"{name}: {told}.")
    return PromiseBroken(f"{name}: no fault was injected, so no promise was tried: {outcomes[0].why}.")


@dataclass(frozen=True)
class GameDay:
    """What a game day is asked for.

    Attributes:
        spec_path: of the YAML file; overrides: with those of the game day itself.
        until: when it ends, on the monotonic clock.
    """

    spec_path: str
    overrides: Sequence[str]
    window: str | None
    spec: PipelineSpec
    until: float


def carry_out(day: GameDay, store: Store, faults: Sequence[Fault]) -> list[Outcome]:
    """Train without a fault, then once with each; TrainwrightError if the training without one fails."""
    log.info("game day: a training without a fault")
    try:
        baseline = _training(day, store, None).run()
    except TimeUsed:
        return [not_injected(fault, "the time was used up") for fault in faults]
    outcomes = []
    for fault in faults:
        if time.monotonic() > day.until:
            outcomes.append(not_injected(fault, "the time was used up"))
            continue
        log.info("game day: %s (%s)", fault.name, fault.what)
        outcomes.append(_struck(day, store, fault, baseline))
        log.info("game day: %s: %s", fault.name, outcomes[-1].verdict)
    return outcomes


def _struck(day: GameDay, store: Store, fault: Fault, baseline: Checkpoint) -> Outcome:
    """The outcome of a training with a fault."""
    training, failure, checkpoint = _training(day, store, fault), "", None
    try:
        checkpoint = training.run()
    except TimeUsed:
        failure = "the time was used up before the training ended"
    except Cancelled:
        raise
    except TrainwrightError as error:
        failure = f"{error.cause}: {error.message}"
    same = None
    if checkpoint is not None and keeps_weights(day.spec):
        same = first_difference((store, store), (baseline.ref, checkpoint.ref)) is None
    times = read_timeline(store, training.uri, fault.causes) if training.uri else None
    if times is None:
        return not_injected(fault, failure)
    train = day.spec.train
    return judged(
        fault, times, failure=failure, limit_s=fault.limit_s(train.hang_timeout_s), nodes=train.nodes, same_weights=same
    )


def _training(day: GameDay, store: Store, fault: Fault | None) -> ConductedTraining:
    train = day.spec.train
    wanted = GameTraining(
        spec=day.spec_path,
        overrides=list(day.overrides),
        window=day.window,
        store=store.uri,
        fault=None if fault is None else fault.planned(train.hang_timeout_s),
        fresh=True,
    )
    return ConductedTraining("flows.commands.gameday", wanted, store, train.pool, day.until)


def main(request: str) -> int:
    """Train and print the answer; returns the exit code."""
    wanted = GameTraining.from_json(json.loads(request))
    # A shell's background job ignores Ctrl-C, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        loaded = read_spec(wanted.spec, wanted.overrides)
        checkpoint = _on_pool(wanted, loaded) if loaded.spec.train.pool else train_once(wanted, loaded)
    except KeyboardInterrupt:
        error: TrainwrightError = Cancelled("The training was stopped.")
    except TrainwrightError as caught:
        error = caught
    else:
        print(json.dumps({"checkpoint": checkpoint.to_json()}), flush=True)
        return 0
    print(json.dumps({"error": error.to_json()}), flush=True)
    return error.exit_code


def _on_pool(request: GameTraining, loaded: LoadedSpec) -> Checkpoint:
    connect("cli")
    from prefect import flow, tags
    from prefect.runtime import flow_run

    from infra.orchestrator.flow_runs import cancellable

    def training() -> Checkpoint:
        print(json.dumps({"flow_run": str(flow_run.id)}), flush=True)
        with cancellable():
            return train_once(request, loaded)

    title = "no fault" if request.fault is None else request.fault.name
    named = flow(name="game-day", flow_run_name=f"game day: {title}")
    with tags(*run_tags(loaded.spec.tags)):
        checkpoint: Checkpoint = named(training)()
    return checkpoint


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
