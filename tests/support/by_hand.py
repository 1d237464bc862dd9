"""A conductor by hand: a real hub, at which a test hears nodes and tells them what a conductor would."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from data_contracts.messages.gang import CancelMarker, Heartbeat, Joined, Launch, Meeting, NodeExit, Place
from infra.gang.conductor import write_launch
from infra.gang.hub import Hub
from infra.store import Store
from tests.support.waiting import until


class ByHand(contextlib.AbstractContextManager["ByHand"]):
    """The conductor of one generation, whose launch is written.

    Attributes:
        launch: as it was written.
        joined, exits: what each node has said, by number; beats: all that any node has said.
    """

    def __init__(self, store: Store, launch: Launch, address: str = "127.0.0.1") -> None:
        self.hub = Hub(address)
        written = write_launch(store, launch, self.hub)
        assert written is not None, "it is the first"
        self.launch = written
        self.joined, self.exits = dict[int, Joined](), dict[int, NodeExit]()
        self.beats: list[Heartbeat] = []

    def hear(self) -> None:
        """Take in what was said since."""
        for node, _, message in self.hub.news():
            if isinstance(message, Joined):
                self.joined[node] = message
            elif isinstance(message, NodeExit):
                self.exits[node] = message
            elif isinstance(message, Heartbeat):
                self.beats.append(message)

    def until(self, wanted: Callable[[], Any], what: Callable[[], Any] = lambda: "") -> Any:
        """The first true answer, while what is said is taken in."""

        def look() -> Any:
            self.hear()
            return wanted()

        return until(look, what=what)

    def meet(self, **changes: Any) -> Meeting:
        """Wait until all nodes have joined, and give them their places."""
        self.until(lambda: len(self.joined) == self.launch.nodes, what=lambda: sorted(self.joined))
        nodes = [self.joined[node] for node in sorted(self.joined)]
        meeting = Meeting(**{"address": nodes[0].address, "port": nodes[0].port, "nodes": nodes, **changes})
        for node, place in meeting.places().items():
            self.tell(node, place)
        return meeting

    def tell(self, node: int, message: Place | CancelMarker) -> None:
        """Tell a node something."""
        self.hub.tell(node, message)

    def __exit__(self, *_: object) -> None:
        self.hub.close()
