"""What `test_step` logs on several ranks, kept per batch, so that rank 0 logs it again in the batches' order.

So Lightning adds the values up as in a process that scores alone. What a rank accumulates over its own batches alone
cannot be logged in such a way, and is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torchmetrics import Metric

from data_contracts.errors import UsageError

# Arguments of `self.log` about ranks: a process alone ignores them.
_OF_RANKS = {"sync_dist", "sync_dist_group", "rank_zero_only"}
_REDUCTIONS = {torch.mean: "mean", torch.sum: "sum", torch.max: "max", torch.min: "min"}
_ONE_DEVICE = "Set evaluate.devices and evaluate.nodes to 1, or name a torchmetrics class over predict_step instead."


class LoggedCalls:
    """The calls of `self.log` in one batch.

    Attributes:
        in_step: whether a test step runs.
    """

    def __init__(self, log: Callable[..., None]) -> None:
        self._signature = inspect.signature(log)
        self.in_step = False
        self._calls: list[dict[str, Any]] = []
        self._values: list[torch.Tensor] = []

    def keep(self, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a call; UsageError for what cannot be logged again on rank 0."""
        if isinstance(value, Metric):
            raise _refused(name, "a metric object, which accumulates on each rank")
        if not self.in_step:
            raise _refused(name, "a value outside of test_step, where each rank knows its own batches alone")
        given = dict(self._signature.bind(name, value, *args, **kwargs).arguments)
        call = {key: one for key, one in given.items() if key not in _OF_RANKS | {"name", "value"}}
        how = call.get("reduce_fx", "mean")
        if not isinstance(how, str):
            if how not in _REDUCTIONS:
                raise _refused(name, "a value with a reduce_fx of its own")
            call["reduce_fx"] = _REDUCTIONS[how]
        tensor = isinstance(value, torch.Tensor)
        self._calls.append({"name": name, "value": None if tensor else float(value), "more": call})
        if tensor:
            self._values.append(value)

    def take_calls(self) -> tuple[list[dict[str, Any]], list[torch.Tensor]]:
        """The calls of the batch, and the tensors among their values in order; the next batch begins without any."""
        taken = self._calls, self._values
        self._calls, self._values = [], []
        return taken


def _refused(name: str, what: str) -> UsageError:
    return UsageError(
        f"evaluate: test_step logs {name} as {what}, which several ranks cannot score.", remedy=_ONE_DEVICE
    )
