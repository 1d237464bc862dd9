"""The results that the store already has for a run's spec, stage by stage: for a stage command, and for a plan."""

from __future__ import annotations

from typing import Any

from tasks.run.run import Run
from tasks.stages.stage import Stage, StageOutcome


class EarlierHandoffs:
    """Results found by their keys; each stage is looked up once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[Stage[..., Any], StageOutcome[Any] | None] = {}

    def stored(self, stage: Stage[..., Any]) -> StageOutcome[Any] | None:
        """The stage's result; UsageError if an input that decides it does not exist yet."""
        if stage not in self._found:
            self._found[stage] = stage.stored(self._run, *self.known(stage))
        return self._found[stage]

    def handoff(self, stage: Stage[..., Any]) -> Any:
        """The stage's hand-off; if there is none, UsageError that names the verb to run first."""
        done = self.stored(stage)
        if done is None or done.error is not None:
            raise stage.first()
        return done.handoff

    def inputs(self, stage: Stage[..., Any]) -> list[Any]:
        """The hand-offs that a stage takes; UsageError as in `handoff`."""
        return [self.handoff(one) for one in stage.takes]

    def known(self, stage: Stage[..., Any]) -> list[Any]:
        """The inputs that identify the stage's result: its hand-offs, or None for each if they do not decide it."""
        return self.inputs(stage) if stage.keyed else [None] * len(stage.takes)
