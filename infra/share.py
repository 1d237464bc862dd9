"""Which items of a list a process handles, if several processes divide the list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Share(NamedTuple):
    """A process's number, and how many processes there are: it handles every `of`-th item. Default: all items."""

    number: int = 0
    of: int = 1

    def items(self, whole: Sequence[T]) -> Sequence[T]:
        """The process's items of a list."""
        return whole[self.number :: self.of]

    def position(self, done: int) -> int:
        """Position in the list of the item that follows the process's first `done` items."""
        return self.number + self.of * done


WHOLE = Share()
