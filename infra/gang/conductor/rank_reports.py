"""Take in what a generation's ranks report: their liveness, their checkpoints, and the progress to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Launch
from data_contracts.messages.ranks import RankReport
from infra.gang.conductor.liveness import Liveness


@dataclass(frozen=True)
class Progress:
    """How far a training has got.

    Attributes:
        phase: `waiting` (another conductor trains it), `starting`, `training` or `ended` (of this generation).
        checkpoint_step: step of the newest committed checkpoint; -1 if there is none.
        sentence: what a person should know beyond the figures, such as why a generation ended; else "".
        cause: why the generation failed that has ended, and is followed by another; "" if it only grows.
        node_seconds: used by the training so far, including this conductor's earlier generations.
    """

    generation: int
    phase: str
    step: int = 0
    epoch: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint_step: int = -1
    sentence: str = ""
    cause: str = ""
    node_seconds: float = field(default=0.0, compare=False)


class Say(Protocol):
    """Shows progress; arguments that are left out keep their values."""

    def __call__(
        self,
        *,
        phase: str = ...,
        step: int = ...,
        epoch: int = ...,
        samples: int = ...,
        metrics: dict[str, float] = ...,
        checkpoint_step: int = ...,
        sentence: str = ...,
    ) -> None:
        """Show these fields of `Progress`."""


class RankReports:
    """What the ranks of one generation have reported so far.

    Args:
        commit: commits a checkpoint.

    Attributes:
        liveness: which ranks make progress.
        micro_batch: rows that a device takes at once; 0 while unknown.
        checkpoint_step: step of the newest committed checkpoint of this generation; -1 if there is none.
    """

    def __init__(self, launch: Launch, commit: Callable[[Checkpoint], None], say: Say) -> None:
        self.liveness = Liveness(launch.hang_s, launch.stall_s, launch.silence_s)
        self.micro_batch = 0
        self.checkpoint_step = -1
        self._launch, self._commit, self._say = launch, commit, say
        self._begun_with = ""

    def take_in(self, reports: Sequence[RankReport], node: str) -> None:
        """Take in the reports of the ranks of `node`, its name in messages."""
        for report in reports:
            self.liveness.hear(report, node)
            self.micro_batch = report.micro_batch or self.micro_batch
            for checkpoint in report.checkpoints:
                self.commit(checkpoint)
            if report.rank == 0:
                self._show(report)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Commit a checkpoint that this generation wrote; CorruptError if it cannot have written it."""
        generation = self._launch.generation
        if checkpoint.training != self._launch.training or checkpoint.generation > generation:
            raise CorruptError(f"{checkpoint.ref.uri} was reported by generation {generation}, which did not write it.")
        if checkpoint.generation < generation:
            # This generation resumed from it at the last step. Older checkpoints left uncommitted are never read.
            return
        self._commit(checkpoint)
        if checkpoint.step > self.checkpoint_step:
            self.checkpoint_step = checkpoint.step
            self._say(checkpoint_step=checkpoint.step)

    def _show(self, report: RankReport) -> None:
        self._say(step=report.step, epoch=report.epoch, samples=report.samples, metrics=report.metrics)
        if report.waits_for:
            self._say(sentence=f"waiting: {report.waits_for}")
        if report.begun_with != self._begun_with:
            self._begun_with = report.begun_with
            self._say(sentence=f"init_from: {self._begun_with}")
