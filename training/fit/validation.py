"""Validation over several ranks: the values that each rank logged of its own rows become one value, equal on all ranks.

Lightning keeps each rank's own mean unless the module asks for `sync_dist`, which hangs if only some ranks log a value.
Here the ranks exchange nothing before all of them have reached the end, whatever each has logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from training.checkpoint.saver import gather
from training.lightning_adapter import LoggedValue, ValidationLoop

_OVER_RANKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.sum,
    "min": torch.amin,
    "max": torch.amax,
}


class SharedValidation(ValidationLoop):
    """The validation loop of a training on several ranks."""

    def share(self) -> None:
        """Reduce the logged values over the ranks, for all names that any rank has."""
        if self.trainer.sanity_checking:
            return
        mine = {key: _sent(value) for key, value in self.logged_values().items()}
        parts = gather(mine)
        shared: list[tuple[dict[str, list[str]], torch.Tensor]] = []
        for key in dict.fromkeys(key for part in parts for key in part):
            held = [part[key] for part in parts if key in part]
            value = _reduce(held).to(self.trainer.strategy.root_device)
            if key in mine:
                self.fix_value(key, value)
            shared.append((held[0]["names"], value))
        self.publish(shared)


def _sent(logged: LoggedValue) -> dict[str, Any]:
    """This rank's part of a logged value, as JSON."""
    weight = torch.tensor(1) if logged.rows is None else logged.rows
    return {
        "names": logged.names,
        "how": logged.reduction,
        "value": _number(logged.value),
        "weight": _number(weight),
    }


def _reduce(held: list[dict[str, Any]]) -> torch.Tensor:
    values = torch.stack([_tensor(one["value"]) for one in held])
    if held[0]["how"] in _OVER_RANKS:
        return _OVER_RANKS[held[0]["how"]](values)
    # A mean is held as the sum of value x rows, beside the number of rows.
    return values.sum() / torch.stack([_tensor(one["weight"]) for one in held]).sum()


def _number(value: torch.Tensor) -> tuple[str, Any]:
    """A tensor of one number as exact JSON."""
    return str(value.dtype).removeprefix("torch."), value.tolist()


def _tensor(number: tuple[str, Any]) -> torch.Tensor:
    kind, value = number
    return torch.tensor(value, dtype=getattr(torch, kind))
