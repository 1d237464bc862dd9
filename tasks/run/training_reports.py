"""Passes a conductor's reports of a training on to the log and to listeners."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from data_contracts.errors import StorageUnavailable
from data_contracts.executions import GangUsage
from data_contracts.handoffs import Dataset
from data_contracts.messages.gang import Launch
from data_contracts.run_report import Cost
from infra.gang.ledger import roster
from infra.gang.members import Progress
from infra.usage import cost, total
from tasks.run.progress import IN_VIEW, GangChanged, GangLaunched, notify, on_page
from tasks.run.report import total_cost
from tasks.run.run import Run, artifact_key
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
    """Logs progress when there is something new (a checkpoint, an epoch, a sentence), at most every few seconds.

    The end of a generation that another follows is a warning: its sentence has the cause, and what follows.

    Listeners get each report, and the list of nodes when a generation has met and when it ended.
    """

    def __init__(self, run: Run, training: str, dataset: Dataset | None) -> None:
        self._run, self._training = run, training
        self._before = total_cost(run)
        self._meter = TrainingMeter(samples_to_come(run, dataset), self._cost)
        self._said: tuple[int, int, str] | None = None
        self._at = 0.0
        self._gang: tuple[int, str] | None = None
        self._page = on_page(artifact_key(run, "gang"))
        self._checkpoint, self._checkpoint_at = -1, 0.0

    def launched(self, launch: Launch, usage: Callable[[], GangUsage]) -> None:
        """Log that a generation is launched, and tell listeners."""
        nodes = "1 node" if launch.nodes == 1 else f"{launch.nodes} nodes"
        at = 0 if launch.resume is None else launch.resume.step
        log.info(
            "  train: generation %d is launched on %s from step %s",
            launch.generation,
            nodes,
            f"{at:,}",
            extra={**IN_VIEW, **self._page},
        )
        notify(GangLaunched(launch, usage))

    def __call__(self, progress: Progress) -> None:
        """Pass one report on."""
        notify(self._meter.take(progress))
        gang = (progress.generation, progress.phase)
        if progress.phase in ("training", "ended") and gang != self._gang:
            self._gang = gang
            notify_of_gang(self._run, self._training)
        if progress.cause and progress.generation >= 0:
            self._announce_restart(progress)
        now = time.monotonic()
        self._log_checkpoint(progress.checkpoint_step, now)
        said = (progress.generation, progress.epoch, progress.sentence)
        if said == self._said or (not progress.sentence and now - self._at < QUIET_S):
            return
        self._said, self._at = said, now
        if progress.sentence:
            level = logging.WARNING if progress.phase == "ended" else logging.INFO
            log.log(level, "  train: %s", progress.sentence, extra=self._page)
        elif progress.phase == "training":
            metrics = "".join(f"  {name} {value:.4g}" for name, value in sorted(progress.metrics.items()))
            log.info("  train: epoch %d, step %d%s", progress.epoch, progress.step, metrics, extra=IN_VIEW)

    def _announce_restart(self, progress: Progress) -> None:
        """Tell Prefect, for those whom `notify` names."""
        from infra.orchestrator.events.run_events import announce_restart

        pipeline, run_id = self._run.spec.name, self._run.run_id
        announce_restart(pipeline, run_id, self._training, progress.generation, progress.cause)

    def _log_checkpoint(self, step: int, now: float) -> None:
        if step in (-1, self._checkpoint) or now - self._checkpoint_at < QUIET_S:
            return
        self._checkpoint, self._checkpoint_at = step, now
        log.info("  train: the checkpoint of step %s is committed", f"{step:,}", extra={**IN_VIEW, **self._page})

    def _cost(self, node_seconds: float) -> Cost:
        """The run's cost if this training used `node_seconds`."""
        price = self._run.resolved.price
        return total([self._before, cost(node_seconds, price)], price)
