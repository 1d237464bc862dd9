"""The steps of a profile in order: warm-up, timed steps, then steps that are counted, traced or not synchronised."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn

from data_contracts.messages.commands import TRACE, Operation, ProfileRequest
from training.checkpoint.capture import Staging, capture
from training.fit.loop import StepLoop
from training.lightning_adapter import dump_checkpoint
from training.profile.operations import OperationCounter
from training.profile.phases import PhaseClock
from training.profile.trace import longest, rewrite

# Steps without an exchange of gradients.
_UNSYNCHRONISED = 10


class Done(BaseException):
    """Leaves the training once all is measured, without the validation and the hooks at its end."""


class ProfiledSteps:
    """What happens between the steps of a profile; a part that a short training does not reach stays unmeasured.

    Attributes:
        step_s, phases: of the timed steps.
        exchange_s: what the backward passes of the middle step take longer than those of one without an exchange.
    """

    def __init__(self, request: ProfileRequest, clock: PhaseClock, accumulate: int, *, traces: bool) -> None:
        self._request, self._clock, self._accumulate = request, clock, accumulate
        self._taken = -1
        self._began = self._validated = 0.0
        self._left: list[tuple[Callable[[L.Trainer], None], Callable[[L.Trainer], None], int]] = [
            (self._nothing, self._nothing, request.warmup),
            (self._begin_timing, self._end_timing, request.steps),
        ]
        if request.traced:
            self._left += [
                (self._begin_counting, self._end_counting, 1),
                *([(self._begin_free, self._end_free, _UNSYNCHRONISED)] if request.ranks > 1 else []),
                # All ranks take equally many steps; one of them writes the trace.
                (self._begin_trace, self._end_trace, request.traced)
                if traces
                else (self._nothing, self._nothing, request.traced),
            ]
        self._ends: Callable[[L.Trainer], None] | None = None
        self._remaining = 0
        self.step_s: list[float] = []
        self.phases: dict[str, float] = {}
        self.exchange_s: float | None = None
        self._backward_s: list[float] = []
        self._passed_back = self._synchronised_s = 0.0
        self.counter: OperationCounter | None = None
        self.counted = False
        self.checkpoint_s: float | None = None
        self.operations: list[Operation] = []
        self.traced, self.cut = 0, False
        self._timing = False
        self._stack = contextlib.ExitStack()
        self._profiler: Any = None

    def between_steps(self, loop: StepLoop, fetcher: Any) -> None:
        """Called before each micro-batch is fetched."""
        self._taken += 1
        if self._taken % self._accumulate == 0:
            self.stepped(loop.trainer)

    def passes_over(self, loop: StepLoop) -> bool:
        """No micro-batch is skipped."""
        return False

    def enter(self, place: str) -> None:
        """Called when a batch is asked for, and when it is there."""
        self._clock.enter("data") if place == "fetching" else self._clock.leave()

    def waited(self, seconds: float) -> None:
        """Nothing to add: the clock has it."""

    def stepped(self, trainer: L.Trainer) -> None:
        """A step ends and another may begin."""
        self._note_step()
        while not self._remaining:
            if self._ends is not None:
                self._ends(trainer)
                self._ends = None
            if not self._left:
                self.close(trainer)
                raise Done
            begins, self._ends, self._remaining = self._left.pop(0)
            begins(trainer)
        self._remaining -= 1

    def _note_step(self) -> None:
        now, validated = self._clock.now(), self._clock.seconds["validation"]
        if self._timing:
            self.step_s.append(now - self._began - (validated - self._validated))
        passed_back = self._clock.seconds.get("backward", 0.0)
        self._backward_s.append(passed_back - self._passed_back)
        self._began, self._validated, self._passed_back = now, validated, passed_back

    def close(self, trainer: L.Trainer) -> None:
        """The training is over, perhaps before all parts were measured."""
        self._note_step()
        if self._ends is not None and not self._remaining:
            self._ends(trainer)
        elif self._timing:
            self._end_timing(trainer)
        self._stack.close()
        self.checkpoint_s = _checkpoint_s(trainer) if self._request.traced else None

    def _restart(self) -> None:
        self._clock.restart()
        self._began, self._validated, self._passed_back, self._backward_s = self._clock.now(), 0.0, 0.0, []

    def _nothing(self, trainer: L.Trainer) -> None:
        """Steps of which nothing is measured."""

    def _begin_timing(self, trainer: L.Trainer) -> None:
        self._restart()
        self._timing = True

    def _end_timing(self, trainer: L.Trainer) -> None:
        self._timing = False
        self._synchronised_s = statistics.median(self._backward_s)
        self.phases = {part: seconds for part, seconds in self._clock.seconds.items() if part != "validation"}

    def _begin_counting(self, trainer: L.Trainer) -> None:
        sharded = trainer.world_size > 1 and not hasattr(trainer.strategy.model, "no_sync")
        if not sharded:  # a step of sharded parameters does not run inside another dispatch
            self.counter = self._stack.enter_context(OperationCounter())

    def _end_counting(self, trainer: L.Trainer) -> None:
        self._stack.close()
        self.counted = self.counter is not None

    def _begin_free(self, trainer: L.Trainer) -> None:
        model = trainer.strategy.model
        if isinstance(model, nn.parallel.DistributedDataParallel):
            self._stack.enter_context(model.no_sync())
            self._restart()

    def _end_free(self, trainer: L.Trainer) -> None:
        self._stack.close()
        if isinstance(trainer.strategy.model, nn.parallel.DistributedDataParallel):
            self.exchange_s = max(0.0, self._synchronised_s - statistics.median(self._backward_s))

    def _begin_trace(self, trainer: L.Trainer) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if trainer.strategy.root_device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = self._stack.enter_context(torch.profiler.profile(activities=activities))
        self._clock.names_in_trace = True

    def _end_trace(self, trainer: L.Trainer) -> None:
        self._clock.names_in_trace = False
        self._stack.close()
        folder = Path(self._request.folder)
        raw = folder / "torch-trace.json"
        self._profiler.export_chrome_trace(str(raw))
        self.operations = longest(self._profiler.key_averages())
        self.cut = rewrite(raw, folder / TRACE)
        raw.unlink()
        self.traced = self._request.traced


def _checkpoint_s(trainer: L.Trainer) -> float:
    """Seconds that a checkpoint holds the steps: its copy to host memory, into buffers that are there already."""
    staging, seconds = Staging(), 0.0
    for _ in range(2):
        began = time.perf_counter()
        capture(dump_checkpoint(trainer), {}, trainer.global_rank, staging=staging).wait()
        seconds = time.perf_counter() - began
    return seconds
