"""Passes a conductor's reports of a training on to the log and to listeners."""

from __future__ import annotations

import contextlib
import logging
import time

from data_contracts.errors import StorageUnavailable
from data_contracts.handoffs import Dataset
from data_contracts.run_report import Cost
from infra.gang.checkpoints.participants import roster
from infra.gang.conductor.rank_reports import Progress
from infra.usage.cost import cost, total
from tasks.run.progress import IN_VIEW, GangChanged, notify
from tasks.run.report import total_cost
from tasks.run.run import Run
from tasks.run.training_progress import TrainingMeter, planned_samples

QUIET_S = 2.0
log = logging.getLogger("trainwright")


def notify_of_gang(run: Run, training: str) -> None:
    """Tell listeners which nodes take part in a training; does nothing while the store is unavailable."""
    with contextlib.suppress(StorageUnavailable):
        notify(GangChanged(roster(run.store, training)))


def samples_to_come(run: Run, dataset: Dataset | None) -> int | None:
    """Samples that the whole training consumes; None where the spec does not say."""
    lightning = run.resolved.lightning
    # With a mixture, and with the user's own data module, the loader decides how long an epoch is.
    ours = dataset is not None and not run.resolved.mixture and not lightning.get("data")
    rows = dataset.rows("train") if dataset is not None and ours else None
    return planned_samples(lightning.get("trainer") or {}, rows, run.spec.train.global_batch_size)


class Reporter:
    """Logs progress when there is something new (a generation, an epoch, a sentence), at most every few seconds.

    Listeners get each report, and the list of nodes when a generation has met and when it ended.
    """

    def __init__(self, run: Run, training: str, dataset: Dataset | None) -> None:
        self._run, self._training = run, training
        self._before = total_cost(run)
        self._meter = TrainingMeter(samples_to_come(run, dataset), self._cost)
        self._said: tuple[int, int, str] | None = None
        self._at = 0.0
        self._gang: tuple[int, str] | None = None

    def __call__(self, progress: Progress) -> None:
        """Pass one report on."""
        notify(self._meter.take(progress))
        gang = (progress.generation, progress.phase)
        if progress.phase in ("training", "ended") and gang != self._gang:
            self._gang = gang
            notify_of_gang(self._run, self._training)
        if progress.cause and progress.generation >= 0:
            self._announce_restart(progress)
        said = (progress.generation, progress.epoch, progress.sentence)
        now = time.monotonic()
        if said == self._said or (not progress.sentence and now - self._at < QUIET_S):
            return
        self._said, self._at = said, now
        if progress.sentence:
            log.info("  train: %s", progress.sentence)
        elif progress.phase == "training":
            metrics = "".join(f"  {name} {value:.4g}" for name, value in sorted(progress.metrics.items()))
            log.info("  train: epoch %d, step %d%s", progress.epoch, progress.step, metrics, extra=IN_VIEW)

    def _announce_restart(self, progress: Progress) -> None:
        """Tell Prefect, for those whom `notify` names."""
        from infra.orchestrator.events.run_events import announce_restart

        pipeline, run_id = self._run.spec.name, self._run.run_id
        announce_restart(pipeline, run_id, self._training, progress.generation, progress.cause)

    def _cost(self, node_seconds: float) -> Cost:
        """The run's cost if this training used `node_seconds`."""
        price = self._run.resolved.price
        return total([self._before, cost(node_seconds, price)], price)
