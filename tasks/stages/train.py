"""train: a gang of nodes trains the module; the hand-off is a committed checkpoint.

Before a node is launched, these checks refuse what would fail later:

- The columns named in a spec must exist; an error names the nearest that does.
- The training must fit its machine; an error says what to change. What certainly lies in a device's memory counts:
  parameters, gradients and optimizer state, whole or sharded, and for a sharded module the largest unit gathered with
  its gradients. Activations do not, so a training that passes may still run out of memory. A machine whose memory is
  not in the price book always passes.
- A shakedown tries the training and what follows it on its first rows. One that passed is kept on this machine, by
  code, data and settings, and is not repeated.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from data_contracts.canonical import reuse_key
from data_contracts.contract.suites import nearest
from data_contracts.errors import Hung, OutOfMemory, TrainwrightError, UsageError
from data_contracts.executions import GangUsage
from data_contracts.handoffs import Checkpoint, Dataset
from data_contracts.messages.children import SHAKEDOWN, ScoredSet, ShakedownRequest, Shaken
from data_contracts.messages.commands import MODULE_MEMORY, ModuleSizes, SizeRequest
from data_contracts.messages.gang import Launch, PlannedFault
from data_contracts.pipeline_spec import EvaluateSpec, TrainSpec
from data_contracts.pipeline_spec.train import LENGTH
from data_contracts.quoting import absent_name, columns_shown
from infra import prices
from infra.child import run_child
from infra.files import replace_json
from infra.gang.conductor import GangOutcome, TrainingRequest, conduct
from infra.gang.conductor import finished as is_finished
from infra.gang.ledger import committed
from infra.orchestrator.gang import launch_secret
from infra.prices import Machine
from infra.processes.environment import NO_SHAKEDOWN
from infra.quantities import size
from infra.records.handoffs import beginning, local_dataset, local_split, mixed
from infra.settings import state_folder
from infra.store import layout
from infra.telemetry import current
from infra.usage import cost
from tasks.budgets import budget_guard
from tasks.gates.set_rows import check_unit_and_slices
from tasks.run.meter import follow, used_by_gang
from tasks.run.progress import GangReleased, NodeHeard, notify
from tasks.run.report import TrainingReporter, notify_of_gang
from tasks.run.run import Run
from tasks.stages.placement import launcher_of, queued_as, refuse_unready
from tasks.stages.shard import pairs_of, sets_to_score, shard
from tasks.stages.stage import PlannedAction, Stage, StageOutcome
from tasks.stages.trainings import continuation, find_training, sealed_settings, training_key, training_of, usable
from tasks.stages.validate import asked_of
from training.formats.schema import field_of
from training.order import refuse_too_few

log = logging.getLogger("trainwright")
# Waiting for data beyond this share of a training's time gives a warning; and what to change, by cause.
WAIT_LIMIT = 0.05
REMEDIES = {
    "reading": "reading the shards takes longest; bring the store nearer, or raise train.loader.memory_bytes.",
    "decoding": "decoding the shards takes longest; raise train.loader.memory_bytes or cache_bytes, so that rows are "
    "decoded once.",
    "cache": "gathering from the cache on disk takes longest; raise train.loader.memory_bytes, or put "
    "TRAINWRIGHT_HOME on a faster disk.",
    "memory": "gathering from memory takes longest; leave columns that the model does not use out of train.batch.",
    "transform": "train.transform takes longest; do what is the same each time in shards.transform.",
    "your loader": "your own data module gives the batches; give its loader workers, or use the sealed shards.",
}
# So many are looked at for a number that holds the module.
MOST_RANKS = 4096
SHAKEDOWN_VERSION = 1
# A module that takes longer, or more of this machine's memory, is trained untried.
SHAKEDOWN_MOST_S, SHAKEDOWN_MEMORY_SHARE = 600.0, 0.5
KEPT, MOST_KEPT = "shakedowns.json", 500


def find_checkpoint(run: Run, key: str, dataset: Dataset | None) -> StageOutcome[Checkpoint] | None:
    """The hand-off of a finished training of this key, if it is whole; UsageError if an earlier step is asked for."""
    training, checkpoint, _ = find_training(run, key)
    return None if checkpoint is None else _reused(run, training, checkpoint)


def run_training(
    run: Run, key: str, dataset: Dataset | None, fault: PlannedFault | None = None
) -> StageOutcome[Checkpoint]:
    """Train, or continue an unfinished training of the same key; a game day's ranks inject a fault.

    Raises:
        UserCodeError: the module raised; never retried.
        Interrupted: a cause outside the user's code, its budget in `retry` spent.
        Fenced: another run has taken the training over.
    """
    training, finished, resumes = find_training(run, key, warn=False)
    if finished is not None:  # another run finished it after `find_checkpoint` looked
        return _reused(run, training, finished)
    if resumes:
        log.info("train continues the unfinished training %s", training)
    spec = run.spec.train
    price = run.resolved.price
    reporter = TrainingReporter(run, training, dataset)
    follow(run, "train", training, local=spec.pool is None)
    try:
        request = TrainingRequest(
            launch=with_fault(_launch(run, training, dataset), fault),
            holder=run.run_id,
            retry=run.spec.retry,
            keep=spec.checkpoint.keep,
            select=spec.select,
            rollcall_timeout_s=spec.rollcall_timeout_s,
            from_step=run.from_step,
            secret=launch_secret(),
            replay=run.replay,
            on_progress=reporter,
            on_launch=reporter.launched,
            on_message=lambda node, message: notify(NodeHeard(node, message)),
            on_usage=partial(_released, run),
            budget_guard=budget_guard(run, "train", local=spec.pool is None),
            launcher=launcher_of(run, "train", training),
        )
        outcome = conduct(run.store, request)
    except TrainwrightError as error:
        notify_of_gang(run, training)
        run.live.add_cost(cost(error.details.get("node_seconds", 0.0), price))
        raise
    notify_of_gang(run, training)
    run.live.add_cost(cost(outcome.node_seconds, price))
    return _trained(run, training, outcome)


def refuse(run: Run, dataset: Dataset | None) -> None:
    """Refuse a training whose nodes cannot be started or that cannot fit them, that has too few rows for a step, or
    fails on its first rows.

    Raises: UsageError; UserCodeError where the module raises.
    """
    refuse_unready(run)
    refuse_unknown(run, dataset)
    # A mixture and the user's own data module have rows beside these.
    if dataset is not None and not run.resolved.mixture and "data" not in run.resolved.lightning:
        refuse_too_few(dataset.rows("train"), run.spec.train.global_batch_size)
    refuse_unfit(run, dataset)
    shake_down(run, dataset)


def unfinished(run: Run, dataset: Dataset | None) -> PlannedAction | None:
    """Where an unfinished training of this key would continue."""
    training, _, begun = find_training(run, training_key(run, dataset), warn=False)
    return _continues(run, training) if begun else None


def resumed(run: Run) -> PlannedAction | None:
    """Where the run's own training would continue, by the run's records.

    UsageError if it should go back to a step that is not committed, or if the training is finished.
    """
    training = training_of(run)
    if training is None:
        return None
    if not run.store.exists(layout.result(training)):
        return _continues(run, training)
    checkpoint = run.store.read_as(layout.result(training), Checkpoint.from_json)
    if run.from_step is not None:
        raise is_finished(training, checkpoint)
    return "reuse", f"{training} is finished: step {checkpoint.step:,}"


train = Stage(
    "train",
    sections=("data", "shards", "train"),
    takes=(shard,),
    key=training_key,
    find=find_checkpoint,
    make=run_training,
    missing="there is no finished training for this dataset and these settings",
    check=refuse,
    remark=queued_as,
    ahead=unfinished,
    resumed=resumed,
)


def _released(run: Run, usage: GangUsage) -> None:
    """Record what the nodes of a generation used, and pass it on."""
    used_by_gang(run, "train", usage)
    notify(GangReleased(usage))


def _launch(run: Run, training: str, dataset: Dataset | None) -> Launch:
    """The settings that every generation of the training gets."""
    spec, resolved = run.spec.train, run.resolved
    read = [] if dataset is None else [dataset.ref, *(_fitting(run, dataset, name).ref for name in resolved.mixture)]
    begin = _older(run, training)
    provenance = run.provenance(*read, begin.ref if begin else None, resolved.init_from, resolved.code)
    return Launch(
        training=training,
        nodes=spec.nodes,
        min_nodes=spec.least_nodes,
        devices=spec.devices,
        hang_s=spec.hang_timeout_s,
        dataset=dataset,
        mixture=resolved.mixture,
        init_from=resolved.init_from,
        begin=begin,
        train=run.train_settings(),
        targets=sorted({one.target for one in run.spec.evaluate.metrics.values() if one.target}),
        code=resolved.code,
        sealed=sealed_settings(run, dataset),
        provenance=run.with_recipe(provenance),
        withhold=run.withholds,
        traceparent=str(current() or ""),
    )


def with_fault(launch: Launch, fault: PlannedFault | None) -> Launch:
    """The launch of ranks that inject a fault."""
    if fault is None:
        return launch
    return launch.model_copy(update={"entry": "training.fit.game_day_rank", "fault": fault})


def _trained(run: Run, training: str, outcome: GangOutcome) -> StageOutcome[Checkpoint]:
    """The gang's hand-off, and a sentence about the course of the training."""
    spec = run.spec.train
    checkpoint = outcome.checkpoint
    if not outcome.node_seconds:
        sentence = f"step {checkpoint.step:,}, trained by another run at the same time"
        return StageOutcome(checkpoint, "reused", sentence, checkpoint.ref, training)
    ranks = f"{spec.world_size} ranks" if spec.world_size > 1 else "1 rank"
    left_out = f", {outcome.dropped_rows} rows of an incomplete last batch left out" if outcome.dropped_rows else ""
    share = outcome.summary.wait_share
    waits = f", {share:.1%} of the time waiting for data" if share >= 0.001 else ""
    warn_of_waiting(share, outcome.summary.wait_cause)
    begun = f", begun with {spec.init_from.weights}: {outcome.summary.begun_with}" if spec.init_from else ""
    happened = "".join(f", {what}" for what in outcome.happened) + checkpoint.passed_over
    sentence = f"step {checkpoint.step:,} on {ranks} ({spec.strategy}){left_out}{waits}{begun}{happened}"
    return StageOutcome(checkpoint, "ran", sentence, checkpoint.ref)


def _reused(run: Run, training: str, checkpoint: Checkpoint) -> StageOutcome[Checkpoint]:
    if run.from_step is not None:
        raise is_finished(training, checkpoint)
    sentence = f"checkpoint of step {checkpoint.step:,} from {training}{checkpoint.passed_over}"
    return StageOutcome(checkpoint, "reused", sentence, checkpoint.ref, training, in_plan=checkpoint.ref.uri)


def _continues(run: Run, training: str) -> PlannedAction:
    return "resume", f"{training} was begun and not finished; {continuation(run.store, training, run.from_step)}"


def warn_of_waiting(share: float, cause: str) -> None:
    """Warn if steps waited for data for more than WAIT_LIMIT of the time, and say what to change."""
    if share > WAIT_LIMIT:
        log.warning("train waited for data %.1f%% of the time: %s", 100 * share, REMEDIES.get(cause, ""))


def _fitting(run: Run, dataset: Dataset, name: str) -> Dataset:
    """A dataset of the mixture, if its rows fit into one batch with this run's; else UsageError."""
    other, field = run.resolved.mixture[name], f"train.loader.mixture.datasets.{name}"
    if other.format != dataset.format:
        raise UsageError(
            f"{field}: {other.ref.uri} is {other.format}, but this run's dataset is {dataset.format}.",
            remedy="Write both in one shards.format.",
        )
    wanted = run.spec.train.batch_columns
    for column in dataset.columns:
        if (wanted is None or column in wanted) and other.columns.get(column) != dataset.columns.get(column):
            raise UsageError(
                f"{field}: {other.ref.uri} has column {column!r} as {other.columns.get(column, 'no column')}, but this "
                f"run's dataset as {dataset.columns.get(column, 'no column')}.",
                remedy="Give both the same type in shards.transform, or leave the column out of train.batch.",
            )
    return other


def _older(run: Run, training: str) -> Checkpoint | None:
    """Where a new attempt begins: at the newest whole checkpoint before the one that the previous attempt spoiled.

    None if the previous attempt was not finished, or a new training was asked for.
    """
    parts = layout.split_attempt(training.rpartition("/")[2])
    if run.resolved.fresh or parts is None or not parts[1]:
        return None
    before = layout.attempt("trainings", parts[0], parts[1] - 1)
    if not run.store.claim(before) or not run.store.exists(layout.result(before)):
        return None
    spoiled = run.store.read_as(layout.result(before), Checkpoint.from_json)
    for checkpoint in reversed(committed(run.store, before)[0]):
        if checkpoint.step < spoiled.step and usable(run, checkpoint):
            log.warning("train continues from step %s of %s", f"{checkpoint.step:,}", before)
            return checkpoint
    log.warning("train starts from step 0: %s has no intact checkpoint before step %s", before, f"{spoiled.step:,}")
    return None


def refuse_unknown(run: Run, dataset: Dataset | None) -> None:
    """UsageError if `train.batch`, a metric, the unit or a slice names a column that the dataset does not have."""
    if dataset is None:
        return
    evaluate = run.spec.evaluate
    if "data" not in run.resolved.lightning:
        check_columns(run.spec.train, evaluate, dataset.columns, sensitive=run.withholds)
    if evaluate.unit is not None or evaluate.slices:
        schema = pa.schema([field_of(name, text) for name, text in dataset.columns.items()])
        check_unit_and_slices(evaluate.unit, evaluate.slices, schema, sensitive=run.withholds)


def check_columns(train: TrainSpec, evaluate: EvaluateSpec, columns: Iterable[str], *, sensitive: bool = False) -> None:
    """UsageError if there is no batch of these columns, or no target in it. The columns that a transform makes are
    unknown.

    Args:
        sensitive: whether a value of the data may stand for a column's name.
    """
    there = [*columns, *(name + LENGTH for name in train.loader.pad)]
    for name in sorted(train.batch_columns or ()):
        if name not in there:
            visible = [] if sensitive else there
            raise UsageError(
                f"train.batch: the dataset has no column {absent_name(name, visible)}{nearest(name, visible) or '.'}",
                remedy=f"It has {columns_shown(there, sensitive)}.",
            )
    if train.transform is not None:
        return
    # A tuple's part is named by its position, or by its column if it is one column.
    names = [entry for entry in (there if train.batch is None else train.batch) if isinstance(entry, str)]
    hidden = sensitive and train.batch is None
    near = [] if hidden else names
    size = len(train.batch) if isinstance(train.batch, list) else 0
    for name, metric in evaluate.metrics.items():
        wanted = metric.target
        if wanted is None or wanted in names or wanted in map(str, range(-size, size)):
            continue
        raise UsageError(
            f"evaluate.metrics.{name}.target: a batch has no {wanted!r}{nearest(wanted, near) or '.'}",
            remedy=f"It has {columns_shown(names, hidden)}{f' (positions 0 to {size - 1})' if size else ''}.",
        )


def size_request(run: Run, dataset: Dataset | None) -> SizeRequest:
    """Measure the module without a step."""
    # A data module is asked by some modules' `setup`. Of a remote store the dataset is not copied here for it.
    is_asked = "data" in run.resolved.lightning and run.store.is_local
    return SizeRequest(
        train=run.train_settings(),
        project=str(run.project()),
        begin=first_weights(run),
        steps=0 if dataset is None else dataset.rows("train") // run.spec.train.global_batch_size,
        dataset_path=str(local_dataset(run.store, dataset)) if dataset is not None and is_asked else "",
    )


def first_weights(run: Run) -> str:
    """The folder of the files of `train.init_from`; "" without, and where a resumed training has outlived them."""
    begin = run.resolved.init_from
    return str(run.store.local(begin)) if begin is not None and run.store.exists(layout.manifest(begin.uri)) else ""


def refuse_unfit(run: Run, dataset: Dataset | None) -> None:
    """UsageError if the training cannot fit its machine, be sharded or begin with its first weights.

    A child builds the user's class without memory.
    """
    train, machine = run.spec.train, prices.machine(run.spec.train.machine)
    limited = bool(machine.memory_bytes) and not prices.on_cpu(run.resolved.lightning)
    if not limited and not train.sharded and run.resolved.init_from is None:
        return
    sizes = run_child(MODULE_MEMORY, size_request(run, dataset), project=run.project(), withhold=run.withholds)
    if sizes.unknown:
        log.info("it is unknown before the start whether the training fits %s: %s", machine.name, sizes.unknown)
    elif limited:
        if sizes.stateless:
            log.warning(
                "train.machine: the optimizer's state is not counted, because it cannot be made without a training: %s",
                sizes.stateless,
            )
        check_memory(train, machine, sizes)


def check_memory(train: TrainSpec, machine: Machine, sizes: ModuleSizes) -> None:
    """UsageError if a device of `machine` has less memory than the training needs on each."""
    for nodes in (train.nodes, train.least_nodes):
        shard = train.mesh(nodes * train.devices)[1]
        need = needed(sizes, shard, sizes.unit)
        if need > machine.memory_bytes:
            raise _unfit(train, machine, sizes, nodes, shard, need)


def _unfit(train: TrainSpec, machine: Machine, sizes: ModuleSizes, nodes: int, shard: int, need: int) -> UsageError:
    parts = {"parameters": sizes.parameters, "gradients": sizes.gradients, "optimizer state": sizes.state}
    breakdown = ", ".join(f"{size(value)} of {name}" for name, value in parts.items())
    spread = f" sharded over {shard}, and a unit of {size(sizes.unit)} gathered" if shard > 1 else ""
    smaller = f" on train.min_nodes = {nodes}" if nodes < train.nodes else ""
    return UsageError(
        f"train.machine: {train.strategy} needs {size(need)} of memory on each device{smaller} ({breakdown}{spread}), "
        f"without activations, but a device of {machine.name} has {size(machine.memory_bytes)}.",
        remedy="Raise train.min_nodes." if smaller else _memory_remedy(train, machine, sizes, shard, need),
    )


def needed(sizes: ModuleSizes, shard: int, unit: int) -> int:
    """Bytes needed on each device if a replica is sharded over `shard` ranks in units of at most `unit` bytes."""
    kept = sizes.parameters + sizes.gradients + sizes.state
    # A gathered unit exists beside its shard, once as parameters and once as gradients.
    return sizes.buffers + (kept if shard == 1 else -(-kept // shard) + 2 * unit)


def _memory_remedy(train: TrainSpec, machine: Machine, sizes: ModuleSizes, shard: int, need: int) -> str:
    remedies = []
    if shard > 1 and needed(sizes, shard, sizes.layer) <= machine.memory_bytes < need:
        remedies.append("shard smaller modules (train.shard_modules)")
    else:
        unit = min(sizes.unit, sizes.layer)
        for ranks in (train.world_size, *range(2, MOST_RANKS + 1)):
            even = train.global_batch_size % ranks == 0 and ranks > shard
            if even and needed(sizes, ranks, unit) <= machine.memory_bytes:
                remedies.append(f"use train.strategy fsdp with train.shard_modules over {ranks} devices")
                break
    roomy = [
        one
        for one in prices.catalogue().values()
        if one.memory_bytes >= need and one.devices >= train.devices and one.name != machine.name
    ]
    if roomy:
        cheapest = min(roomy, key=lambda one: one.newest_per_hour)
        remedies.append(f"take train.machine {cheapest.name} ({size(cheapest.memory_bytes)} a device)")
    sentence = ", or ".join(remedies) or "make the module smaller"
    return f"{sentence[0].upper()}{sentence[1:]}."


def shake_down(run: Run, dataset: Dataset | None) -> None:
    """Try the training of a run, and what follows it, in a child process, unless it has passed before.

    Raises:
        UsageError, UserCodeError: what would end the run later, with the user's file and line.
    """
    if os.environ.get(NO_SHAKEDOWN) or run.replay is not None:
        return
    elsewhere = run.spec.train.pool is not None
    if dataset is None and (elsewhere or not run.external):
        why = "its data module may read what this machine does not have" if run.external else "no shards exist yet"
        log.info("no shakedown of the training now: %s", why)
        return
    try:
        request = _shakedown_request(run, dataset)
    except UsageError as error:  # in a plan: the dataset of another set is not made
        log.info("no shakedown of the training now: %s", error.message)
        return
    key = _shakedown_key(run, request)
    if key in _passed():
        return
    try:
        with _laid_out(run, request) as local_request:
            shaken = run_child(
                SHAKEDOWN,
                local_request,
                project=run.project(),
                withhold=run.withholds,
                limit=SHAKEDOWN_MOST_S,
                memory_share=SHAKEDOWN_MEMORY_SHARE,
            )
    except (Hung, OutOfMemory) as error:
        log.warning("the shakedown did not end, so the training begins untried: %s", error.message)
        return
    for sentence in shaken.remarks:
        log.warning("shakedown: %s", sentence)
    _refuse_unknown_columns(run, shaken)
    replace_json(state_folder() / KEPT, [*_passed(), key][-MOST_KEPT:])


def _shakedown_request(run: Run, dataset: Dataset | None) -> ShakedownRequest:
    spec, resolved, whole = run.spec, run.resolved, run.store.is_local
    sets = {
        name: ScoredSet(dataset=scored if whole else beginning(scored), split=split)
        for name, (scored, split) in sets_to_score(run, dataset).items()
    }
    return ShakedownRequest(
        train=run.train_settings(),
        dataset=dataset if dataset is None or whole else beginning(dataset),
        train_rows=0 if dataset is None else mixed(dataset, resolved.mixture).rows("train"),
        whole=whole,
        evaluate=spec.evaluate.result,
        sets=sets,
        predictions=asked_of(run) is not None,
        pairs=pairs_of(run),
        exports=[gate.to for gate in spec.promote.export],
        elsewhere=spec.train.pool is not None and not prices.on_cpu(resolved.lightning),
        code=resolved.code,
    )


def _shakedown_key(run: Run, request: ShakedownRequest) -> str:
    """What a shakedown depends on: code, environment, settings, and the ids of the datasets."""
    settings = {
        **sealed_settings(run, request.dataset),
        "lock": run.resolved.lock_digest,
        "predictions": run.resolved.predictions,
        **request.model_dump(mode="json", include={"evaluate", "pairs", "exports", "elsewhere"}),
    }
    inputs = {name: scored.dataset.ref.id for name, scored in request.sets.items()}
    return reuse_key("shakedown", SHAKEDOWN_VERSION, settings, inputs, run.resolved.code_digest)


def _passed() -> list[str]:
    """The keys of the shakedowns that passed on this machine, the latest last."""
    with contextlib.suppress(OSError, ValueError):
        keys = json.loads((state_folder() / KEPT).read_text())
        return keys if isinstance(keys, list) else []
    return []


@contextlib.contextmanager
def _laid_out(run: Run, request: ShakedownRequest) -> Iterator[ShakedownRequest]:
    """The request with the folders of what it needs; shards of a remote store are copied here meanwhile."""
    paths = {request.code.id: str(run.project())}
    with contextlib.ExitStack() as stack:
        for need in request.needs:
            if isinstance(need, Dataset) and need.ref.id not in paths:
                paths[need.ref.id] = str(stack.enter_context(local_split(run.store, need, *need.splits)))
        weights = first_weights(run) if request.whole else ""
        yield request.at(paths).model_copy(update={"first_weights": weights})


def _refuse_unknown_columns(run: Run, shaken: Shaken) -> None:
    """UsageError if the suite of `contract.predictions` names a column that the predictions do not have."""
    suite: Mapping[str, Any] = run.resolved.predictions or {}
    for name, columns in shaken.columns.items() if asked_of(run) is not None else ():
        for column in _columns(suite):
            if column not in columns:
                place = f" on evaluate.sets.{name}" if name else ""
                raise UsageError(
                    f"contract.predictions{place}: the predictions have no column {absent_name(column, columns)}.",
                    remedy=f"They have {', '.join(columns)}.",
                )


def _columns(suite: Mapping[str, Any]) -> Iterator[str]:
    """The columns that the critical expectations of a suite name."""
    for expectation in suite.get("expectations", []):
        kwargs = expectation.get("kwargs") or {}
        if (expectation.get("severity") or "critical") == "critical" and isinstance(kwargs.get("column"), str):
            yield kwargs["column"]
