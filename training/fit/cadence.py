"""When a checkpoint is due, and whether train may hand it over."""

from __future__ import annotations

from collections.abc import Mapping

from data_contracts.pipeline_spec import TrainSpec


class Cadence:
    """The cadence of one training, the same on all ranks."""

    def __init__(self, train: TrainSpec) -> None:
        self._every_steps, self._select = train.checkpoint.every_steps, train.select
        self._best: float | None = None

    def is_due(self, step: int, last: int, *, epoch_begins: bool) -> bool:
        """Whether to save after `step`, where `last` is the newest checkpoint's step. Default: at the end of each
        epoch.
        """
        every = self._every_steps
        return step > last and (epoch_begins if every is None else step // every > last // every)

    def may_be_chosen(self, metrics: Mapping[str, float], *, last: bool) -> bool:
        """Whether train may hand this checkpoint over: it is the last, or the best so far by `train.select`."""
        value = metrics.get(self._select.metric) if self._select else None
        if self._select is None or value is None:
            return last
        best = self._best if self._best is not None else value
        better = value <= best if self._select.mode == "min" else value >= best
        self._best = value if better else best
        return better or last
