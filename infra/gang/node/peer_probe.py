"""Probe continuously which other nodes a node can reach, to distinguish a cut link from a hung rank."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence

from data_contracts.messages.gang import Joined

PROBE_S = 2.0
# Two failed probes in a row: the first packet of a connection may be lost once and is resent after a second.
MISSES = 2


class PeerProbe(threading.Thread):
    """Listens for the other nodes, and probes each in turn.

    Attributes:
        port: the port on which this node listens.
    """

    def __init__(self, node: int, address: str) -> None:
        super().__init__(name="peer probe", daemon=True)
        self._node = node
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family, backlog=64)
        self.port: int = self._server.getsockname()[1]
        self._peers: list[Joined] = []
        self._missed: dict[int, int] = {}
        self._stopped = threading.Event()

    def meet(self, nodes: Sequence[Joined]) -> None:
        """Begin to probe the nodes that the roll-call fixed."""
        self._peers = [peer for peer in nodes if peer.node != self._node and peer.links is not None]
        threading.Thread(target=self._answer, name="answer probes", daemon=True).start()
        self.start()

    @property
    def unreachable(self) -> list[int]:
        """Nodes that do not answer. A node that refuses a connection is alive; its own heartbeats report its state."""
        return sorted(node for node, missed in list(self._missed.items()) if missed >= MISSES)

    def run(self) -> None:
        """Probe the other nodes until `stop`."""
        while not self._stopped.wait(PROBE_S):
            for peer in self._peers:
                reached = self._reaches(peer)
                self._missed[peer.node] = 0 if reached else self._missed.get(peer.node, 0) + 1

    def stop(self) -> None:
        """Stop probing and listening."""
        self._stopped.set()
        self._server.close()

    def _reaches(self, peer: Joined) -> bool:
        try:
            with socket.create_connection((peer.address, peer.links), timeout=PROBE_S):
                return True
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._server.accept()[0].close()
