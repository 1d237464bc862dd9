"""Reports what verify and evaluate get done, so that a process that gets nothing done is found."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import lightning as L

from data_contracts.messages.children import Advanced

EVERY_S = 0.5


class Progress:
    """Counts pieces of work; reports the first, and at most every half second, or where a long piece begins or ends."""

    def __init__(self, report: Callable[[Advanced], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self._done, self._long, self._told = 0, True, -math.inf

    def moved(self, *, long: bool = False) -> None:
        """A piece of work is done; `long`: the next may take as long as loading a model does."""
        self._done += 1
        now = self._clock()
        if long != self._long or now - self._told >= EVERY_S:
            self._long, self._told = long, now
            self._report(Advanced(done=self._done, long=long))


class CountBatches(L.Callback):
    """Counts scored batches; the user's hooks at the end of an epoch may take long."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_predict_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """A batch is scored."""
        self._progress.moved()

    def on_test_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """A batch is scored."""
        self._progress.moved()

    def on_predict_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """Hooks, the metrics' results and the next set follow."""
        self._progress.moved(long=True)

    def on_test_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """Hooks, the metrics' results and the next set follow."""
        self._progress.moved(long=True)
