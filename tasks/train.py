"""train: a gang of nodes trains the module; what it hands over is a committed checkpoint."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from data_contracts.canonical import reuse_key
from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, UsageError
from data_contracts.handoffs import Checkpoint, Dataset
from infra.checkpoints import verify_checkpoint
from infra.cost import cost
from infra.launch.conductor import conduct
from infra.launch.conductor import finished as is_finished
from infra.launch.generation import Progress
from infra.launch.roster import roster
from infra.launch.shelf import committed
from infra.store import layout
from tasks.columns import refuse_unknown
from tasks.fitting import refuse_unfit
from tasks.placing import placed
from tasks.progress import tell
from tasks.run import Run
from tasks.stage import Done, stage

VERSION = 1
QUIET_S = 2.0
log = logging.getLogger("trainwright")
# Share of a training's time from which waiting for data is worth a warning, and what to change by its cause.
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

# Where a training runs, and how long it waits, decides nothing of its result.
PLACEMENT = {
    "launcher",
    "pool",
    "nodes",
    "min_nodes",
    "devices",
    "machine",
    "micro_batch_size",
    "shard_ranks",
    "rollcall_timeout_s",
    "collective_timeout_s",
    "hang_timeout_s",
    "spike_factor",
}


def training_key(run: Run, dataset: Dataset | None) -> str:
    """Reuse key of a training: what decides its result; never where it ran."""
    return key_of(sealed_settings(run, dataset))


def key_of(sealed: dict[str, Any], version: int = VERSION) -> str:
    """Reuse key of a training from what is sealed in its checkpoints."""
    return reuse_key("train", version, sealed["train"], sealed["dataset_id"], sealed["code_digest"])


def sealed_settings(run: Run, dataset: Dataset | None) -> dict[str, Any]:
    """What decides a training's result. It is sealed in every checkpoint, which is rebuilt from nothing else."""
    settings = {name: value for name, value in run.train_settings().items() if name not in PLACEMENT}
    settings["checkpoint"] = {"every_steps": settings["checkpoint"]["every_steps"]}
    settings["loader"] = run.spec.train.loader.result
    begin = settings.pop("init_from")
    if run.resolved.init_from is not None:
        settings["init_from"] = {"id": run.resolved.init_from.id, "strict": begin["strict"]}
    if run.resolved.mixture:
        others = {name: other.ref.id for name, other in run.resolved.mixture.items()}
        settings["loader"]["mixture"] = {**settings["loader"]["mixture"], "datasets": others}
    return {
        "train": settings,
        "code_digest": run.resolved.code_digest,
        "dataset_id": None if dataset is None else dataset.ref.id,
    }


@stage("train")
def train(run: Run, dataset: Dataset | None) -> Done[Checkpoint]:
    """Train, go on with an unfinished training of the same key, or reuse a finished one.

    Raises:
        UserCodeError: the module raised; never tried again.
        Interrupted: a cause outside the user's code, its budget in `retry` spent.
        Fenced: another run has taken the training over.
    """
    key = training_key(run, dataset)
    training, finished, resumes = find_training(run, key)
    if finished is not None:
        if run.from_step is not None:
            raise is_finished(training, finished)
        sentence = f"checkpoint of step {finished.step:,} from {training}{finished.passed_over}"
        return Done(finished, "reused", sentence, finished.ref, training)
    if resumes:
        log.info("train goes on with the unfinished training %s", training)
    refuse_unknown(run, dataset)
    refuse_unfit(run)
    spec = run.spec.train
    read = (
        [] if dataset is None else [dataset.ref, *(_fitting(run, dataset, name).ref for name in run.resolved.mixture)]
    )
    begin = _older(run, training)
    launch: dict[str, Any] = {
        "schema_version": 1,
        "training": training,
        "nodes": spec.nodes,
        "min_nodes": spec.least_nodes,
        "devices": spec.devices,
        "hang_s": spec.hang_timeout_s,
        "dataset": None if dataset is None else dataset.to_json(),
        "mixture": {name: other.to_json() for name, other in run.resolved.mixture.items()},
        "init_from": None if run.resolved.init_from is None else run.resolved.init_from.to_json(),
        "begin": begin.to_json() if begin is not None else None,
        "train": run.train_settings(),
        "data_external": run.external,
        "code": run.resolved.code.to_json(),
        "sealed": sealed_settings(run, dataset),
        "provenance": run.provenance(*read, begin.ref if begin else None, run.resolved.init_from, run.resolved.code),
        "store_options": run.spec.store.storage_options,
    }
    price = run.resolved.price
    try:
        outcome = conduct(
            run.store,
            training,
            launch,
            holder=run.run_id,
            retry=run.spec.retry,
            keep=spec.checkpoint.keep,
            select=spec.select,
            rollcall_timeout_s=spec.rollcall_timeout_s,
            from_step=run.from_step,
            on_progress=_Reporter(run, training),
            **placed(run, "train", training),
        )
    except TrainwrightError as error:
        tell_gang(run, training)
        run.spent.append(cost(error.details.get("node_seconds", 0.0), price))
        raise
    tell_gang(run, training)
    run.spent.append(cost(outcome.node_seconds, price))
    checkpoint = outcome.checkpoint
    if not outcome.node_seconds:
        sentence = f"step {checkpoint.step:,}, trained by another run meanwhile"
        return Done(checkpoint, "reused", sentence, checkpoint.ref, training)
    ranks = f"{spec.world_size} ranks" if spec.world_size > 1 else "1 rank"
    left_out = f", {outcome.dropped_rows} rows of an incomplete last batch left out" if outcome.dropped_rows else ""
    waits = f", {outcome.wait_share:.1%} of the time waiting for data" if outcome.wait_share >= 0.001 else ""
    warn_of_waiting(outcome.wait_share, outcome.wait_cause)
    begun = f", begun with {spec.init_from.weights}: {outcome.begun_with}" if spec.init_from else ""
    happened = "".join(f", {what}" for what in outcome.happened) + checkpoint.passed_over
    sentence = f"step {checkpoint.step:,} on {ranks} ({spec.strategy}){left_out}{waits}{begun}{happened}"
    return Done(checkpoint, "ran", sentence, checkpoint.ref)


def warn_of_waiting(share: float, cause: str) -> None:
    """Say so if steps waited for data for more than WAIT_LIMIT of the time, and what to change."""
    if share > WAIT_LIMIT:
        log.warning("train waited for data %.1f%% of the time: %s", 100 * share, REMEDIES.get(cause, ""))


def _fitting(run: Run, dataset: Dataset, name: str) -> Dataset:
    """A dataset of the mixture, if its rows can stand beside this run's in one batch; else UsageError."""
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
                remedy="Make them alike in shards.transform, or leave the column out of train.batch.",
            )
    return other


def find_training(run: Run, key: str) -> tuple[str, Checkpoint | None, bool]:
    """The training to use for a key: its directory, its checkpoint if finished and whole, and whether it was begun."""
    attempt = max(run.store.attempts("trainings", key), default=0)
    training = layout.attempt("trainings", key, attempt)
    following = layout.attempt("trainings", key, attempt + 1), None, False
    if not run.store.claim(training):
        return following
    begun = bool(run.store.list(training))
    if begun and run.resolved.fresh and _begun_by(run, training) != run.run_id:
        return following
    if run.store.exists(layout.result(training)):
        checkpoint = Checkpoint.from_json(run.store.read_json(layout.result(training)))
        return (training, checkpoint, True) if _usable(run, checkpoint) else following
    return training, None, begun


def _begun_by(run: Run, training: str) -> str | None:
    """The run that began a training: `--new` asks for one of its own once, however often the run is gone on with."""
    try:
        return run.store.read_json(layout.launch(training, 0))["provenance"]["run_id"]
    except FileNotFoundError:
        return None


def _usable(run: Run, checkpoint: Checkpoint) -> bool:
    uri = checkpoint.ref.uri
    if run.store.exists(layout.quarantined(uri)):
        log.warning("the checkpoint %s is quarantined", uri)
        return False
    try:
        verify_checkpoint(run.store, checkpoint)
    except (CorruptError, FileNotFoundError):
        log.warning("the checkpoint %s is corrupt or gone", uri)
        return False
    return True


def _older(run: Run, training: str) -> Checkpoint | None:
    """Where a new attempt begins: at the newest whole checkpoint before the one that the attempt before it spoiled.

    None where the attempt before was not finished, or a training of its own was asked for.
    """
    found = layout.split_attempt(training.rpartition("/")[2])
    if run.resolved.fresh or found is None or not found[1]:
        return None
    before = layout.attempt("trainings", found[0], found[1] - 1)
    if not run.store.claim(before) or not run.store.exists(layout.result(before)):
        return None
    spoiled = Checkpoint.from_json(run.store.read_json(layout.result(before)))
    for checkpoint in reversed(committed(run.store, before)[0]):
        if checkpoint.step < spoiled.step and _usable(run, checkpoint):
            log.warning("train goes on from step %s of %s", f"{checkpoint.step:,}", before)
            return checkpoint
    log.warning("train begins anew: %s has no whole checkpoint before step %s", before, f"{spoiled.step:,}")
    return None


def tell_gang(run: Run, training: str) -> None:
    """Tell whoever listens who takes part in a training; nothing while the store is away."""
    with contextlib.suppress(StorageUnavailable):
        tell({"gang": roster(run.store, training)})


class _Reporter:
    """Logs progress when it tells something new (a generation, an epoch, a sentence), at most every few seconds.

    Who takes part is told when a generation has met, and when it ended.
    """

    def __init__(self, run: Run, training: str) -> None:
        self._run, self._training = run, training
        self._said: tuple[int, int, str] | None = None
        self._at = 0.0
        self._gang: tuple[int, str] | None = None

    def __call__(self, progress: Progress) -> None:
        gang = (progress.generation, progress.phase)
        if progress.phase in ("training", "ended") and gang != self._gang:
            self._gang = gang
            tell_gang(self._run, self._training)
        said = (progress.generation, progress.epoch, progress.sentence)
        now = time.monotonic()
        if said == self._said or (not progress.sentence and now - self._at < QUIET_S):
            return
        self._said, self._at = said, now
        if progress.sentence:
            log.info("  train: %s", progress.sentence)
        elif progress.phase == "training":
            metrics = "".join(f"  {name} {value:.4g}" for name, value in sorted(progress.metrics.items()))
            log.info("  train: epoch %d, step %d%s", progress.epoch, progress.step, metrics)
