"""Read what the nodes of one generation have written to the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from data_contracts.messages.gang import Heartbeat, Joined, Launch, NodeExit
from infra.gang.codes import Codes
from infra.store import Store, layout

T = TypeVar("T")
# A store that takes this long to answer was unreachable meanwhile; the layer below retried the request.
SLOW_S = 2.0


class NodeRecords:
    """The records of a generation's nodes; each method returns None while the node has not written its record.

    CorruptError for a record without the right code: none of the nodes wrote it.

    Args:
        codes: of the generation.
        on_slow: called with the seconds that the store took to answer, if it was unreachable meanwhile.
    """

    def __init__(self, store: Store, launch: Launch, codes: Codes, on_slow: Callable[[float], None]) -> None:
        self._store, self._codes, self._on_slow = store, codes, on_slow
        self._generation = (launch.training, launch.generation)

    def joined(self, node: int) -> Joined | None:
        """A node's answer to the roll-call."""
        return self._read(layout.joined(*self._generation, node), Joined.from_json)

    def beat(self, node: int, number: int) -> Heartbeat | None:
        """A node's heartbeat of this number."""
        return self._read(layout.beat(*self._generation, node, number), Heartbeat.from_json)

    def exit(self, node: int) -> NodeExit | None:
        """How a node ended."""
        return self._read(layout.node_exit(*self._generation, node), NodeExit.from_json)

    def _read(self, path: str, parse: Callable[[Any], T]) -> T | None:
        asked = time.monotonic()
        try:
            return self._store.find_as(path, self._codes.checking(path, parse))
        finally:
            if (waited := time.monotonic() - asked) > SLOW_S:
                self._on_slow(waited)
