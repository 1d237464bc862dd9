"""train: a gang of nodes trains the module; the hand-off is a committed checkpoint."""

from __future__ import annotations

import logging
from functools import partial

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.executions import GangUsage
from data_contracts.handoffs import Checkpoint, Dataset
from data_contracts.messages.gang import Launch, PlannedFault
from infra.gang.conductor import GangOutcome, TrainingRequest, conduct
from infra.gang.conductor import finished as is_finished
from infra.gang.ledger import committed
from infra.orchestrator.launch_secret import launch_secret
from infra.store import layout
from infra.telemetry import current
from infra.usage import cost
from tasks.budgets import allowance
from tasks.run.meter import follow, used_by_gang
from tasks.run.progress import GangReleased, NodeHeard, notify
from tasks.run.report import TrainingReporter, notify_of_gang
from tasks.run.run import Run
from tasks.stages.column_check import refuse_unknown
from tasks.stages.memory_check import refuse_unfit
from tasks.stages.placement import pool_gang
from tasks.stages.shakedown import shake_down
from tasks.stages.shard import shard
from tasks.stages.stage import PlannedAction, Stage, StageOutcome
from tasks.stages.trainings import continuation, find_training, sealed_settings, training_key, training_of, usable
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
        pool = pool_gang(run, "train", training)
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
            allowance=allowance(run, "train", local=spec.pool is None),
            start=None if pool is None else pool.start,
            room=None if pool is None else pool.room,
        )
        outcome = conduct(run.store, request)
    except TrainwrightError as error:
        notify_of_gang(run, training)
        run.spent.append(cost(error.details.get("node_seconds", 0.0), price))
        raise
    notify_of_gang(run, training)
    run.spent.append(cost(outcome.node_seconds, price))
    return _trained(run, training, outcome)


def refuse(run: Run, dataset: Dataset | None) -> None:
    """Refuse a training that cannot fit its machine, has too few rows for a step, or fails on its first rows.

    Raises: UsageError; UserCodeError where the module raises.
    """
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
