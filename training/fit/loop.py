"""Lightning's training loop with one place between two steps where nothing is half done, and validation over all ranks.

Before the next batch is fetched, checkpoints are written there, stop requests are answered, and a resumed run restores
its generators. Lightning itself saves inside a step's hooks and reconstructs the remaining work on restart. Resuming
from this place needs none of that, so it is switched off.

In validation, the values that each rank logged of its own rows become one value, equal on all ranks. Lightning keeps
each rank's own mean unless the module asks for `sync_dist`, which hangs if only some ranks log a value. Here the ranks
exchange nothing before all of them have reached the end, whatever each has logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from lightning.pytorch import Trainer

from training.checkpoint.saver import gather
from training.lightning_adapter import EpochLoop, LoggedValue, ValidationLoop, install_epoch_loop

_OVER_RANKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.sum,
    "min": torch.amin,
    "max": torch.amax,
}


class Between(Protocol):
    """What happens between two steps."""

    def between_steps(self, loop: StepLoop, fetcher: Any) -> None:
        """Called on every rank before each micro-batch is fetched."""

    def passes_over(self, loop: StepLoop) -> bool:
        """Whether the next micro-batch is skipped."""


class Observer(Protocol):
    """Receives where the loop is."""

    def enter(self, place: str) -> None:
        """Called when the loop enters another place."""

    def waited(self, seconds: float) -> None:
        """Called with the seconds that fetching a batch took."""


class StepLoop(EpochLoop):
    """The loop over the micro-batches of an epoch."""

    def __init__(self, trainer: Trainer, between: Between, observer: Observer) -> None:
        super().__init__(trainer, SharedValidation(trainer) if trainer.world_size > 1 else None)
        self._between, self._observer = between, observer
        self._fetching_since = 0.0

    def before_batch(self, fetcher: Any) -> bool:
        """Run the work between two steps; returns whether the next micro-batch is trained on."""
        self._between.between_steps(self, fetcher)
        return not self._between.passes_over(self)

    def around_fetch(self, *, fetched: bool) -> None:
        """Note where the rank is, and how long fetching took."""
        if not fetched:
            self._fetching_since = time.monotonic()
            self._observer.enter("fetching")
        else:
            self._observer.enter("forward")
            self._observer.waited(time.monotonic() - self._fetching_since)


def install(trainer: Trainer, between: Between, observer: Observer) -> None:
    """Replace a Trainer's loop with this one, and keep the Trainer from handling signals.

    Lightning's SIGTERM handler starts a collective inside the signal; ours only sets a flag.
    """
    install_epoch_loop(trainer, StepLoop(trainer, between, observer))


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


def _reduce(parts: list[dict[str, Any]]) -> torch.Tensor:
    values = torch.stack([_tensor(one["value"]) for one in parts])
    if parts[0]["how"] in _OVER_RANKS:
        return _OVER_RANKS[parts[0]["how"]](values)
    # A mean is held as the sum of value x rows, beside the number of rows.
    return values.sum() / torch.stack([_tensor(one["weight"]) for one in parts]).sum()


def _number(value: torch.Tensor) -> tuple[str, Any]:
    """A tensor of one number as exact JSON."""
    return str(value.dtype).removeprefix("torch."), value.tolist()


def _tensor(number: tuple[str, Any]) -> torch.Tensor:
    kind, value = number
    return torch.tensor(value, dtype=getattr(torch, kind))
