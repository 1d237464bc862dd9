"""Decide what follows a failed generation: raise its cause, or change the launch of the next generation.

A training can also be made again as an earlier one was: a generation of the replay ends where the earlier one's kept
steps ended, and the next begins with the earlier one's world size, micro-batch and skipped samples. If a generation
fails, the next continues the same part. What the gang may still use, budgets decide (`tasks.budgets`).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from data_contracts.errors import (
    Cancelled,
    Diverged,
    Fenced,
    GangIncomplete,
    Hung,
    Interrupted,
    NodeLost,
    OutOfMemory,
    StorageUnavailable,
    TrainwrightError,
)
from data_contracts.executions import GangUsage
from data_contracts.messages.gang import Launch, Retries, Segment, StopAt
from data_contracts.pipeline_spec import RetrySpec
from infra import stopping
from infra.gang.ledger import Ledger
from infra.gang.members import fitting

# Why a gang must end with a checkpoint now; None if it may continue.
Over = Callable[[], TrainwrightError | None]
# A node that failed this many times is left out.
FAILURES = 2
# A machine that broke takes no part for a day: by then somebody has looked at it, or its device was reset.
WITHDRAWN_S = 86_400.0


class Recovery:
    """The retry budgets of one training, and the changes for its next generation.

    The ledger keeps all of this for the next conductor, because a conductor that dies must not get new budgets.

    Args:
        retries: what earlier conductors have used up and changed.

    Attributes:
        skipped: ranges of samples (from, to) that training skips.
        happened: sentences about what makes this training differ from an undisturbed training.
    """

    def __init__(
        self, retry: RetrySpec, launch: Launch, skipped: Sequence[tuple[int, int]], retries: Retries | None = None
    ) -> None:
        self._retry, self._launch = retry, launch
        before = retries or Retries()
        self.skipped = list(skipped)
        self.happened = list(before.happened)
        self._used = Counter(before.used)
        self._failures = Counter(before.failures)
        # A run that resumes may ask for fewer nodes or another micro-batch than the run before.
        self._left_out = list(before.left_out)
        while self._left_out and not self._fitting(len(self._left_out)):
            self._left_out.pop(0)
        self._withdrawn = dict(before.withdrawn)
        self._micro_batch = before.micro_batch if self._is_smaller(before.micro_batch) else None

    @property
    def nodes(self) -> int:
        """The largest number of nodes for the next generation."""
        return self._fitting(len(self._left_out))

    @property
    def withdrawn(self) -> list[str]:
        """Machines that broke within the last WITHDRAWN_S."""
        return [host for host, since in self._withdrawn.items() if time.time() < since + WITHDRAWN_S]

    @property
    def launch(self) -> Launch:
        """The launch of the next generation, without its number, token and checkpoint."""
        train = self._launch.settings
        if self._micro_batch is not None:
            train = {**train, "micro_batch_size": self._micro_batch}
        hosts = [name for name in dict.fromkeys([*self._left_out, *self.withdrawn]) if "#" not in name]
        changes = {
            "nodes": self.nodes,
            "nodes_in_spec": self._launch.nodes,
            "skip": list(self.skipped),
            "left_out": hosts,
            "withdrawn": self.withdrawn,
        }
        return self._launch.model_copy(update={**changes, "train": train})

    def after(self, error: TrainwrightError, nodes: dict[int, str], micro_batch: int) -> str:
        """Decide how training continues after `error`. Raises `error` if it does not continue.

        Returns a sentence that describes the change; "" if there is none.

        Args:
            nodes: hosts of the nodes that trained, by number; empty if no generation got that far.
            micro_batch: rows that a device took at once; 0 if unknown.
        """
        if error.details.get("grows") or error.details.get("planned"):
            return ""
        if isinstance(error, GangIncomplete) and (back := self.withdrawn):
            self._withdrawn = {}
            return f"No other machine came in place of {', '.join(back)}, which may take part again."
        key = error.retry_key or ""
        self._used[key] += 1
        used = len(self.skipped) + 1 if isinstance(error, Diverged) else self._used[key]
        if used > getattr(self._retry, key, 0):
            raise error
        if isinstance(error, OutOfMemory):
            return self._halve(error, micro_batch)
        if isinstance(error, Diverged):
            return self._skip(error)
        return self._count(error, nodes) if isinstance(error, NodeLost | Hung) else ""

    @property
    def retries(self) -> Retries:
        """What failures have used up and changed so far, for the next conductor."""
        return Retries(
            used=dict(self._used),
            failures=dict(self._failures),
            left_out=list(self._left_out),
            withdrawn=dict(self._withdrawn),
            micro_batch=self._micro_batch,
            happened=list(self.happened),
        )

    def used(self, error: TrainwrightError) -> int:
        """How often this training has seen an error with this cause."""
        return self._used[error.retry_key or ""]

    def _halve(self, error: OutOfMemory, micro_batch: int) -> str:
        smaller = next(filter(self._shares_evenly, range(micro_batch // 2, 0, -1)), 0)
        if not smaller:
            # A micro-batch has at least one row, and the user's own loader has its own batches.
            raise error
        self._micro_batch = smaller
        sentence = f"out of memory: micro-batches of {smaller} rows instead of {micro_batch}, same global batch"
        self.happened.append(sentence)
        return f"{sentence[0].upper()}{sentence[1:]}."

    def _shares_evenly(self, rows: int) -> bool:
        """Whether micro-batches of `rows` make up a step in the largest and in the smallest gang, as in the spec."""
        ranks = [nodes * self._launch.devices for nodes in (self._launch.nodes, self._launch.least_nodes)]
        return all(self._launch.global_batch_size // each % rows == 0 for each in ranks)

    def _is_smaller(self, rows: int | None) -> bool:
        """Whether an earlier conductor's micro-batch still fits, and the spec does not ask for a smaller one."""
        if rows is None or not self._shares_evenly(rows):
            return False
        wanted = self._launch.settings.get("micro_batch_size")
        return wanted is None or rows < int(wanted)

    def _skip(self, error: Diverged) -> str:
        if "rows" not in error.details:
            # Only our loader knows which samples a batch holds.
            raise error
        first, end = error.details["samples"]
        self.skipped.append((first, end))
        return f"Samples {first:,} to {end:,} are passed over."

    def _count(self, error: TrainwrightError, nodes: dict[int, str]) -> str:
        number = error.details.get("node")
        # The node that reports a broken connection may not be the one that broke it. One that never joined has no name.
        if number not in nodes or not nodes[number] or error.details.get("link"):
            return ""
        host = nodes[number]
        distinct = len(set(nodes.values())) == len(nodes) > 1
        name = host if distinct else f"{host}#{number}"
        if error.details.get("broken") and distinct:
            # Not fewer nodes: another machine may take its place.
            self._withdrawn[host] = time.time()
            self.happened.append(f"node {number} ({host}) is broken and is replaced")
            return f"Another machine is asked for in place of {host}."
        self._failures[name] += 1
        if self._failures[name] < FAILURES or name in self._left_out or not self._fitting(len(self._left_out) + 1):
            return ""
        self._left_out.append(name)
        sentence = f"node {number} ({host}) failed {FAILURES} times and is left out"
        self.happened.append(sentence)
        return f"{sentence[0].upper()}{sentence[1:]}."

    def _fitting(self, left_out: int) -> int:
        return fitting(self._launch, self._launch.nodes - left_out, self._launch.least_nodes)


def restore_budgets(ledger: Ledger, error: TrainwrightError | None = None) -> None:
    """Reset the retry budgets, because `error` or an answer is reported: the next conductor has full budgets."""
    if ledger.retries != Retries() and not isinstance(error, Fenced | Cancelled):
        with contextlib.suppress(StorageUnavailable, Fenced):
            ledger.record_recovery(ledger.skipped, Retries())


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
        stops = [
            (one, StopAt(step=following.first_step, may_be_last=following.has_held_loss)) for one, following in ends
        ]
        return [*stops, (self.segments[-1], None)]

    def with_stops(self, retry: RetrySpec) -> RetrySpec:
        """The retry budgets, with the stops of the replay not counted as preemptions."""
        return retry.model_copy(update={"preempted": retry.preempted + len(self.parts()) - 1})

    def launch(self, launch: Launch) -> Launch:
        """The launch of the generation that continues from `launch.resume`, as the earlier training had it."""
        step = 0 if launch.resume is None else launch.resume.step
        segment, stop = next((one, stop) for one, stop in self.parts() if stop is None or step < stop.step)
        train = {
            **launch.settings,
            "shard_ranks": segment.shard_ranks,
            "strategy": segment.strategy or launch.settings["strategy"],
        }
        if segment.micro_batch:
            train["micro_batch_size"] = segment.micro_batch
        changes = {"nodes": segment.nodes, "nodes_in_spec": None, "min_nodes": None, "devices": segment.devices}
        changes |= {"threads": segment.facts.threads or None}
        return launch.model_copy(update={**changes, "skip": segment.skip, "stop": stop, "train": train})


class BudgetGuard(Protocol):
    """Admits the nodes of generations, and says when the gang must end."""

    def admit(self, nodes: int) -> None:
        """Reserve the cost of nodes that are about to be launched; OverBudget if they cannot be paid."""

    def launched(self, usage: Callable[[], GangUsage]) -> None:
        """Note that a generation begins; `usage` is what its nodes have used at any time."""

    def released(self) -> None:
        """Note that the nodes of the generation are released, and their use is recorded."""

    def over(self) -> TrainwrightError | None:
        """Why the gang must end with a checkpoint now; None if it may continue."""


class Unlimited:
    """No budget."""

    def admit(self, nodes: int) -> None:
        """Nothing is reserved."""

    def launched(self, usage: Callable[[], GangUsage]) -> None:
        """Nothing is counted."""

    def released(self) -> None:
        """Nothing is counted."""

    def over(self) -> TrainwrightError | None:
        """Never."""
        return None


UNLIMITED: BudgetGuard = Unlimited()


def raise_why_over(budget_guard: BudgetGuard, error: TrainwrightError) -> None:
    """Raise the reason why the gang had to end early, if `error` is only a consequence of it."""
    why = stopping.handed_over() or budget_guard.over()
    if why is not None and isinstance(error, Interrupted) and not isinstance(error, Fenced):
        raise why from error
