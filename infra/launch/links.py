"""Which other nodes of a gang a node can reach: tried all the while, so that a cut link is told from a hung rank."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

PROBE_S = 2.0
# Two probes in a row: a connection's first packet may be lost once, and is sent again after a second.
MISSES = 2


class Links(threading.Thread):
    """Listens for the others, and tries them in turn.

    Attributes:
        port: where this node listens.
    """

    def __init__(self, node: int, address: str) -> None:
        super().__init__(name="links", daemon=True)
        self._node = node
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family, backlog=64)
        self.port: int = self._server.getsockname()[1]
        self._peers: list[dict[str, Any]] = []
        self._missed: dict[int, int] = {}
        self._stopped = threading.Event()

    def meet(self, nodes: list[dict[str, Any]]) -> None:
        """Begin with the nodes that the roll-call fixed."""
        self._peers = [peer for peer in nodes if peer["node"] != self._node and "links" in peer]
        threading.Thread(target=self._answer, name="links", daemon=True).start()
        self.start()

    @property
    def unreachable(self) -> list[int]:
        """Nodes that do not answer; one that refuses lives, and its own heartbeats tell how it is."""
        return sorted(node for node, missed in list(self._missed.items()) if missed >= MISSES)

    def run(self) -> None:
        """Until `stop`."""
        while not self._stopped.wait(PROBE_S):
            for peer in self._peers:
                reached = self._reaches(peer)
                self._missed[peer["node"]] = 0 if reached else self._missed.get(peer["node"], 0) + 1

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        self._server.close()

    def _reaches(self, peer: dict[str, Any]) -> bool:
        try:
            with socket.create_connection((peer["address"], peer["links"]), timeout=PROBE_S):
                return True
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._server.accept()[0].close()
