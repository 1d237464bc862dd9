"""What follows the end of a generation: its cause is raised, or the next one is told what to do otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_contracts.errors import Diverged, Hung, NodeLost, OutOfMemory, TrainwrightError
from data_contracts.spec import RetrySpec
from infra.launch.members import fitting

# A node that failed so often takes no part any more.
FAILURES = 2


class Recovery:
    """The budgets of one conductor, and what its next generation is told.

    Attributes:
        skipped: samples (from, to) that are passed over; the trail keeps them, for whoever conducts next.
        happened: sentences about what makes this training differ from an undisturbed one.
    """

    def __init__(self, retry: RetrySpec, launch: dict[str, Any], skipped: Sequence[tuple[int, int]]) -> None:
        self._retry, self._launch = retry, launch
        self.skipped = list(skipped)
        self.happened: list[str] = []
        self._used: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._left_out: list[str] = []
        self._micro_batch: int | None = None

    @property
    def nodes(self) -> int:
        """How many nodes the next generation is to have, at most."""
        return self._fitting(len(self._left_out))

    def told(self) -> dict[str, Any]:
        """What the next generation is told beyond the launch of the training."""
        told = {
            "nodes": self.nodes,
            "asked": int(self._launch["nodes"]),
            "skip": self.skipped,
            "left_out": [name for name in self._left_out if "#" not in name],
        }
        if self._micro_batch is not None:
            told["train"] = {**self._launch["train"], "micro_batch_size": self._micro_batch}
        return told

    def after(self, error: TrainwrightError, nodes: dict[int, str], micro_batch: int) -> str:
        """How training goes on after `error`, as a sentence; "" if as before. Raises `error` where it does not.

        Args:
            nodes: hosts of the nodes that trained, by number; none if no generation came so far.
            micro_batch: rows that a device took at once; 0 if unknown.
        """
        if error.details.get("grows"):
            return ""
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

    def used(self, error: TrainwrightError) -> int:
        """How often the budget of this error's cause was used."""
        return self._used[error.retry_key or ""]

    def _halve(self, error: OutOfMemory, micro_batch: int) -> str:
        batch, asked = int(self._launch["train"].get("global_batch_size", 0)), int(self._launch["nodes"])
        # What a rank takes of a step in the largest and in the smallest gang; the spec's own rule.
        ranks = [nodes * int(self._launch["devices"]) for nodes in (asked, int(self._launch.get("min_nodes", asked)))]
        halves = range(micro_batch // 2, 0, -1)
        smaller = next((rows for rows in halves if all(batch // each % rows == 0 for each in ranks)), 0)
        if not smaller:
            # One row is the least; the user's own loader has batches of its own.
            raise error
        self._micro_batch = smaller
        sentence = f"out of memory: micro-batches of {smaller} rows instead of {micro_batch}, same global batch"
        self.happened.append(sentence)
        return f"{sentence[0].upper()}{sentence[1:]}."

    def _skip(self, error: Diverged) -> str:
        if "rows" not in error.details:
            # Only our loader knows which batch is which.
            raise error
        first, end = error.details["samples"]
        self.skipped.append((first, end))
        return f"Samples {first:,} to {end:,} are passed over."

    def _count(self, error: TrainwrightError, nodes: dict[int, str]) -> str:
        number = error.details.get("node")
        # Whoever says that a connection broke need not be the one that broke it.
        if number not in nodes or error.details.get("link"):
            return ""
        host = nodes[number]
        distinct = len(set(nodes.values())) == len(nodes) > 1
        name = host if distinct else f"{host}#{number}"
        self._failures[name] += 1
        if self._failures[name] < FAILURES or name in self._left_out or not self._fitting(len(self._left_out) + 1):
            return ""
        self._left_out.append(name)
        sentence = f"node {number} ({host}) failed {FAILURES} times and is left out"
        self.happened.append(sentence)
        return f"{sentence[0].upper()}{sentence[1:]}."

    def _fitting(self, left_out: int) -> int:
        asked = int(self._launch["nodes"])
        return fitting(self._launch, asked - left_out, int(self._launch.get("min_nodes", asked)))
