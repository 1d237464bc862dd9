"""When a checkpoint is due, and whether train may hand it over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from data_contracts.pipeline_spec import TrainSpec


class Cadence:
    """The cadence of one training. By steps, it is the same on all ranks. By the clock, each rank decides by itself,
    and all ranks save as soon as one of them asks.

    Args:
        clock: seconds that never go back, whatever happens to the machine's time of day.
    """

    def __init__(self, train: TrainSpec, clock: Callable[[], float] = time.monotonic) -> None:
        every_s = train.checkpoint.every_s
        assert every_s != "auto", "a run looks up what it stands for before it launches a rank"
        self._every_steps, self._every_s, self._select = train.checkpoint.every_steps, every_s, train.select
        self._best: float | None = None
        self._clock, self._since = clock, clock()

    def begin(self) -> None:
        """Count seconds from now on: training begins, or a checkpoint was saved."""
        self._since = self._clock()

    def is_due(self, step: int, last: int, *, epoch_begins: bool, measured: bool = False) -> bool:
        """Whether to save after `step`, where `last` is the newest checkpoint's step. Default: at the end of each
        epoch. Between checkpoints by the clock, epochs end without one, unless `train.select` chooses among them.

        Args:
            measured: whether a validation has just measured the metric of `train.select`.
        """
        if step <= last or measured:
            return step > last
        every = self._every_steps
        if every is not None:
            return step // every > last // every
        return epoch_begins and (self._every_s is None or self._select is not None)

    def is_time(self, step: int, last: int) -> bool:
        """Whether, by this rank's clock, the newest checkpoint is so old that this rank asks for the next one."""
        return self._every_s is not None and step > last and self._clock() - self._since >= self._every_s

    def unchosen(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics of a checkpoint that `train.select` must not choose: without the one by which it chooses. So the
        model that is handed over depends on no clock, and on no value that was measured on other weights.
        """
        return {name: value for name, value in metrics.items() if self._select is None or name != self._select.metric}

    def may_be_chosen(self, metrics: Mapping[str, float], *, last: bool) -> bool:
        """Whether train may hand this checkpoint over: it is the last, or the best so far by `train.select`."""
        value = metrics.get(self._select.metric) if self._select else None
        if self._select is None or value is None:
            return last
        best = self._best if self._best is not None else value
        better = value <= best if self._select.mode == "min" else value >= best
        self._best = value if better else best
        return better or last
