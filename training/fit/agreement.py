"""The ranks' agreement between two steps, so that all of them save, stop or fail at the same step."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# The ranks agree on the greatest flag. The findings about the loss (`training.fit.divergence`) are greater than these.
CONTINUE, DUE, STOP, NOT_SAVED, WRONG = range(5)


class Agreement:
    """One rank's part in the agreement.

    Attributes:
        stop_signalled: whether this rank got a SIGTERM.
    """

    def __init__(self, timeout_s: float) -> None:
        self.stop_signalled = False
        self._timeout = timedelta(seconds=timeout_s)
        self._group: dist.ProcessGroup | None = None

    def listen(self) -> None:
        """Take SIGTERM as a request to stop. The ranks share the flag at the next step, whichever of them got it."""
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def meet(self, world_size: int) -> None:
        """Create the ranks' group. Collective; call it once the ranks have found each other."""
        if world_size > 1:
            # gloo on a GPU too: reading a flag from the device would wait for the step.
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)

    def most_urgent(self, flag: int) -> int:
        """The greatest flag of any rank. Collective."""
        return self._reduced(flag, dist.ReduceOp.MAX)

    def total(self, number: int) -> int:
        """The sum over all ranks. Collective."""
        return self._reduced(number, dist.ReduceOp.SUM)

    def _reduced(self, number: int, operation: dist.ReduceOp.RedOpType) -> int:
        if self._group is None:
            return number
        shared = torch.tensor(number)
        dist.all_reduce(shared, operation, group=self._group)
        return int(shared)

    def _on_sigterm(self, *_: Any) -> None:
        self.stop_signalled = True
