"""train: a gang of nodes trains the module; what it hands over is a committed checkpoint."""

from __future__ import annotations

import logging
from typing import Any

from data_contracts.canonical import reuse_key
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Dataset
from infra.cost import cost
from infra.launch.conductor import Progress, conduct
from infra.machines import machine
from infra.store import layout
from tasks.run import Run
from tasks.stage import Done, stage

VERSION = 1
log = logging.getLogger("trainwright")

PLACEMENT = ("launcher", "nodes", "devices", "machine", "micro_batch_size", "rollcall_timeout_s", "collective_timeout_s")


def training_key(run: Run, dataset: Dataset | None) -> str:
    """Reuse key of a training: what decides its result; never where it ran."""
    settings = run.train_settings()
    for field in PLACEMENT:
        settings.pop(field)
    settings["checkpoint"] = {"every_steps": settings["checkpoint"]["every_steps"]}
    inputs = None if dataset is None else dataset.ref.id
    return reuse_key("train", VERSION, settings, inputs, run.resolved.code_digest)


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
        "code_digest": run.resolved.code_digest,
        "provenance": run.provenance(dataset.ref if dataset else None, run.resolved.code),
        "store_options": run.spec.store.storage_options,
    }
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
    run.spent.append(cost(outcome.node_seconds, machine(spec.machine)))
    checkpoint = outcome.checkpoint
    ranks = f"{spec.world_size} ranks" if spec.world_size > 1 else "1 rank"
    dropped = f", {checkpoint.dropped_rows} rows of the last incomplete batch left out" if checkpoint.dropped_rows else ""
    sentence = f"step {checkpoint.step:,} on {ranks} ({spec.strategy}){dropped}"
    return Done(checkpoint, "ran", sentence, checkpoint.ref)


def find_training(run: Run, key: str) -> tuple[str, Checkpoint | None, bool]:
    """The training to use for a key: its directory, its checkpoint if finished and whole, and whether it was begun."""
    attempt = 0
    while run.store.list(layout.attempt("trainings", key, attempt + 1)):
        attempt += 1
    training = layout.attempt("trainings", key, attempt)
    if run.store.exists(layout.training_result(training)):
        checkpoint = Checkpoint.from_json(run.store.read_json(layout.training_result(training)))
        if not run.fresh and _whole(run, checkpoint):
            return training, checkpoint, True
        return layout.attempt("trainings", key, attempt + 1), None, False
    begun = bool(run.store.list(training))
    if begun and run.fresh:
        return layout.attempt("trainings", key, attempt + 1), None, False
    return training, None, begun


def _whole(run: Run, checkpoint: Checkpoint) -> bool:
    try:
        run.store.verify(checkpoint.ref)
    except (CorruptError, FileNotFoundError):
        log.warning("the checkpoint %s is corrupt or gone; training again", checkpoint.ref.uri)
        return False
    return True


class _Reporter:
    """Logs progress when it tells something new: a generation, an epoch, a checkpoint."""

    def __init__(self) -> None:
        self._said: tuple[int, int, int] = (-1, -1, -1)

    def __call__(self, progress: Progress) -> None:
        if (said := (progress.generation, progress.epoch, progress.checkpoint_step)) != self._said:
            self._said = said
            metrics = "".join(f"  {name} {value:.4g}" for name, value in sorted(progress.metrics.items()))
            log.info("  train: generation %d, epoch %d, step %d%s", progress.generation, progress.epoch, progress.step, metrics)
