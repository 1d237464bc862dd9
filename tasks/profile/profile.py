"""Profiles the training of a run: a short training in scratch, then another one with the change most worth trying.

Neither takes a lease, writes a checkpoint or a hand-off, or has a place in a reuse key.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.handoffs import Dataset
from data_contracts.messages.commands import PROFILE, TRACE, ProfileRequest, StepProfile
from data_contracts.pipeline_spec import TrainSpec
from infra import scratch
from infra.child import run_child
from infra.records.handoffs import local_dataset, mixed
from tasks.profile.changes import Change, change_for
from tasks.profile.verdict import (
    NAMES,
    Bound,
    Comparison,
    Roofline,
    bound_by,
    compare,
    parts_of,
    roofline,
    steps_between,
)
from tasks.run.run import Run

# Steps before the first that is timed, timed steps, and steps of the trace.
WARMUP, STEPS, TRACED = 10, 20, 5
MOST_S = 1800.0
log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Profiled:
    """What a profile found.

    Attributes:
        parts: part of a step → seconds of a mean step.
        change: what is most worth trying, and `comparison`: what it gave; `failed`: why that is not known.
        trace: compressed, in Chrome's format; empty if the training ended before its steps.
    """

    profile: StepProfile
    parts: dict[str, float]
    roof: Roofline | None
    bound: Bound
    change: Change | None
    comparison: Comparison | None
    after: StepProfile | None
    failed: str
    trace: bytes

    def to_json(self) -> dict[str, Any]:
        """The figures, for a program."""
        compared = self.comparison
        return {
            "bound": self.bound,
            "seconds": self.parts,
            "change": None if self.change is None else self.change.what,
            "samples_per_s": None if compared is None else {"before": compared.before, "after": compared.after},
            "helps": None if compared is None else compared.helps,
            "steps": len(self.profile.step_s),
        }


def refuse_elsewhere(train: TrainSpec) -> None:
    """UsageError for a training on a work pool: a profile's steps run here."""
    if train.pool is not None:
        raise UsageError(
            f"train.pool: a profile runs on this machine, but the training runs on the work pool {train.pool}.",
            remedy="Leave --profile out, or profile on a node: --set train.pool=null --set train.launcher=local.",
        )


def profile(run: Run, dataset: Dataset | None) -> Profiled:
    """Profile the training of a run's settings on its dataset.

    Raises:
        UsageError: the training runs elsewhere, or ends before a step could be timed.
        UserCodeError: the module raised.
    """
    refuse_elsewhere(run.spec.train)
    settings = run.train_settings()
    with scratch.make("profile") as folder:
        log.info("profile: %s timed steps after %s of warm-up", STEPS, WARMUP)
        before = _measure(run, dataset, settings, folder.path, traced=TRACED)
        file = folder.path / TRACE
        trace = file.read_bytes() if file.exists() else b""
        parts = parts_of(before, settings["checkpoint"])
        roof = roofline(before, parts)
        bound = bound_by(parts, roof)
        change = change_for(bound, before, settings, os.cpu_count() or 1)
        after, failed = None, ""
        if change is not None:
            log.info("profile: bound by %s; measuring the change: %s", NAMES[bound], change.what)
            after, failed = _try(run, dataset, change, folder.path)
    comparison = None if change is None or after is None else _compared(before, after, settings, change)
    return Profiled(before, parts, roof, bound, change, comparison, after, failed, trace)


def _try(run: Run, dataset: Dataset | None, change: Change, folder: Path) -> tuple[StepProfile | None, str]:
    """The same steps with a change; or None, and why they cannot be taken."""
    try:
        return _measure(run, dataset, change.train, folder, change=change), ""
    except TrainwrightError as error:
        return None, error.message


def _measure(
    run: Run,
    dataset: Dataset | None,
    train: dict[str, Any],
    folder: Path,
    *,
    traced: int = 0,
    change: Change | None = None,
) -> StepProfile:
    mixture = run.resolved.mixture
    spec = run.spec.train
    request = ProfileRequest(
        train=train,
        project=str(run.project()),
        dataset=dataset,
        dataset_path="" if dataset is None else str(local_dataset(run.store, mixed(dataset, mixture))),
        mixture=mixture,
        nodes=spec.nodes,
        devices=spec.devices,
        warmup=WARMUP,
        steps=STEPS,
        traced=traced,
        folder=str(folder),
        batches_ready=change is not None and change.batches_ready,
        compiled=change is not None and change.compiled,
    )
    return run_child(PROFILE, request, project=run.project(), withhold=run.withholds, limit=MOST_S)


def _compared(before: StepProfile, after: StepProfile, settings: dict[str, Any], change: Change) -> Comparison:
    def added_s(checkpoint: dict[str, Any]) -> float:
        mean_s = sum(before.step_s) / len(before.step_s)
        between = steps_between(checkpoint, before.steps_per_epoch, mean_s)
        return (before.checkpoint_s or 0.0) / between if between else 0.0

    return compare(before, after, (added_s(settings["checkpoint"]), added_s(change.train["checkpoint"])))
