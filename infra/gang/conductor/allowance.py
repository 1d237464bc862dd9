"""What a gang may still use; its conductor asks, and budgets decide (`tasks.budgets`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from data_contracts.costs.usage import GangUsage
from data_contracts.errors import Fenced, Interrupted, TrainwrightError
from data_contracts.messages.gang import CancelMarker, Launch
from infra import stopping
from infra.store import Store, layout

# Why a gang must end with a checkpoint now; None if it may continue.
Over = Callable[[], TrainwrightError | None]


class Allowance(Protocol):
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


UNLIMITED: Allowance = Unlimited()


class EndEarly:
    """Asks the nodes of a generation, once, for a checkpoint and their end.

    It does so when there is no allowance left, or when the conductor's worker is stopped as planned.
    """

    def __init__(self, store: Store, launch: Launch, over: Over) -> None:
        self._store, self._over, self._asked = store, over, False
        self._path = layout.cancel(launch.training, launch.generation)

    def ask_if_over(self) -> None:
        """Write the marker that the nodes watch, if it is time."""
        if self._asked or (why := stopping.handed_over() or self._over()) is None:
            return
        self._store.create_once(self._path, CancelMarker(cause=why.cause, saves=True).to_json())
        self._asked = True


def raise_why_over(allowance: Allowance, error: TrainwrightError) -> None:
    """Raise the reason why the gang had to end early, if `error` is only a consequence of it."""
    why = stopping.handed_over() or allowance.over()
    if why is not None and isinstance(error, Interrupted) and not isinstance(error, Fenced):
        raise why from error
