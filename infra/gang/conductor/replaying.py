"""How an earlier training is made again: which generation did which steps, as pure functions.

A generation of the replay ends where the earlier one's kept steps ended, and the next begins with the earlier one's
world size, micro-batch and skipped samples. If a generation fails, the next continues the same part.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from data_contracts.messages.gang import Launch
from data_contracts.pipeline_spec import RetrySpec
from data_contracts.replay import Segment, StopAt


@dataclass(frozen=True)
class Replay:
    """An earlier training.

    Attributes:
        segments: what its generations did, in the order of their steps.
        keep_steps: steps of checkpoints that are to be kept.
    """

    segments: Sequence[Segment]
    keep_steps: Collection[int] = ()

    def parts(self) -> list[tuple[Segment, StopAt | None]]:
        """The generations of which steps were kept, each with the step after which it ends; None: to the end."""
        ends = [(one, following) for one, following in pairwise(self.segments) if following.first_step > one.first_step]
        stops = [(one, StopAt(step=following.first_step, may_be_last=following.held)) for one, following in ends]
        return [*stops, (self.segments[-1], None)]

    def with_stops(self, retry: RetrySpec) -> RetrySpec:
        """The retry budgets, with the stops of the replay not counted as preemptions."""
        return retry.model_copy(update={"preempted": retry.preempted + len(self.parts()) - 1})

    def launch(self, launch: Launch) -> Launch:
        """The launch of the generation that continues from `launch.resume`, as the earlier training had it."""
        step = 0 if launch.resume is None else launch.resume.step
        segment, stop = next((one, stop) for one, stop in self.parts() if stop is None or step < stop.step)
        train = {
            **launch.train,
            "shard_ranks": segment.shard_ranks,
            "strategy": segment.strategy or launch.train["strategy"],
        }
        if segment.micro_batch:
            train["micro_batch_size"] = segment.micro_batch
        changes = {"nodes": segment.nodes, "asked": None, "min_nodes": None, "devices": segment.devices}
        changes |= {"threads": segment.facts.threads or None}
        return launch.model_copy(update={**changes, "skip": segment.skip, "stop": stop, "train": train})
