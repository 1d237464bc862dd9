"""train: a gang of nodes trains the module; what it hands over is a committed checkpoint."""

from __future__ import annotations

import logging
import time
from typing import Any

from data_contracts.canonical import reuse_key
from data_contracts.errors import CorruptError, TrainwrightError
from data_contracts.handoffs import Checkpoint, Dataset
from infra.cost import cost
from infra.launch.conductor import conduct
from infra.launch.generation import Progress
from infra.store import layout
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
    "nodes",
    "devices",
    "machine",
    "micro_batch_size",
    "rollcall_timeout_s",
    "collective_timeout_s",
}


def training_key(run: Run, dataset: Dataset | None) -> str:
    """Reuse key of a training: what decides its result; never where it ran."""
    told = sealed_settings(run, dataset)
    return reuse_key("train", VERSION, told["train"], told["dataset_id"], told["code_digest"])


def sealed_settings(run: Run, dataset: Dataset | None) -> dict[str, Any]:
    """What decides a training's result. It is sealed in every checkpoint, which is rebuilt from nothing else."""
    settings = {name: value for name, value in run.train_settings().items() if name not in PLACEMENT}
    settings["checkpoint"] = {"every_steps": settings["checkpoint"]["every_steps"]}
    settings["loader"] = run.spec.train.loader.result
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
        sentence = f"checkpoint of step {finished.step:,} from {training}"
        return Done(finished, "reused", sentence, finished.ref, training)
    if resumes:
        log.info("train goes on with the unfinished training %s", training)
    spec = run.spec.train
    launch: dict[str, Any] = {
        "schema_version": 1,
        "training": training,
        "nodes": spec.nodes,
        "devices": spec.devices,
        "dataset": None if dataset is None else dataset.to_json(),
        "train": run.train_settings(),
        "data_external": run.external,
        "code": run.resolved.code.to_json(),
        "sealed": sealed_settings(run, dataset),
        "provenance": run.provenance(dataset.ref if dataset else None, run.resolved.code),
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
            on_progress=_Reporter(),
        )
    except TrainwrightError as error:
        run.spent.append(cost(error.details.get("node_seconds", 0.0), price))
        raise
    run.spent.append(cost(outcome.node_seconds, price))
    checkpoint = outcome.checkpoint
    if not outcome.node_seconds:
        sentence = f"step {checkpoint.step:,}, trained by another run meanwhile"
        return Done(checkpoint, "reused", sentence, checkpoint.ref, training)
    ranks = f"{spec.world_size} ranks" if spec.world_size > 1 else "1 rank"
    left_out = f", {outcome.dropped_rows} rows of an incomplete last batch left out" if outcome.dropped_rows else ""
    waits = f", {outcome.wait_share:.1%} of the time waiting for data" if outcome.wait_share >= 0.001 else ""
    warn_of_waiting(outcome.wait_share, outcome.wait_cause)
    sentence = f"step {checkpoint.step:,} on {ranks} ({spec.strategy}){left_out}{waits}"
    return Done(checkpoint, "ran", sentence, checkpoint.ref)


def warn_of_waiting(share: float, cause: str) -> None:
    """Say so if steps waited for data for more than WAIT_LIMIT of the time, and what to change."""
    if share > WAIT_LIMIT:
        log.warning("train waited for data %.1f%% of the time: %s", 100 * share, REMEDIES.get(cause, ""))


def find_training(run: Run, key: str) -> tuple[str, Checkpoint | None, bool]:
    """The training to use for a key: its directory, its checkpoint if finished and whole, and whether it was begun."""
    attempt = 0
    while run.store.list(layout.attempt("trainings", key, attempt + 1)):
        attempt += 1
    training = layout.attempt("trainings", key, attempt)
    following = layout.attempt("trainings", key, attempt + 1), None, False
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
        log.warning("the checkpoint %s is quarantined; training again", uri)
        return False
    try:
        run.store.verify(checkpoint.ref)
    except (CorruptError, FileNotFoundError):
        log.warning("the checkpoint %s is corrupt or gone; training again", uri)
        return False
    return True


class _Reporter:
    """Logs progress when it tells something new (a generation, an epoch, a sentence), at most every few seconds."""

    def __init__(self) -> None:
        self._said: tuple[int, int, str] | None = None
        self._at = 0.0

    def __call__(self, progress: Progress) -> None:
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
