"""torchrun with a rendezvous at a socket that is already bound.

Run as `python -m training.fit.torchrun_agent ARGUMENT…`, with torchrun's arguments. A TCPStore that opens its own
socket listens on every interface of the machine (torch 2.13, `TCPServer::start` and `LibUVStoreDaemon`, bind to the
wildcard address; no option names another), and anyone who reaches it may read and write its keys. The first node's
supervisor hands over a socket that listens on the node's address alone.
"""

from __future__ import annotations

import os
import sys

import torch.distributed.run
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
    static_tcp_rendezvous,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

BACKEND = "bound"
# The default of torch's static rendezvous.
TIMEOUT_S = 600
# Not known to torch 2.11.
SHUTDOWN_TIMEOUT = "--shutdown-timeout"


class BoundRendezvous(static_tcp_rendezvous.StaticTCPRendezvous):
    """torch's static rendezvous, whose store listens on a socket that it is given."""

    listener: int | None = None

    def get_backend(self) -> str:
        """The backend's name in `--rdzv-backend`."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Serve the store on the given socket; without a socket, connect to the store."""
        if self._store is None and self.listener is not None:
            # Ranks are clients of this store and must not inherit the socket.
            os.set_inheritable(self.listener, False)
            self._store = TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                True,
                self.timeout,
                multi_tenant=True,
                master_listen_fd=self.listener,
            )
        return super().next_rendezvous()


def _create(parameters: RendezvousParameters) -> BoundRendezvous:
    """Create it from torchrun's arguments: `--rdzv-conf=rank=RANK`, with `,fd=NUMBER` on the first node."""
    rank = parameters.get_as_int("rank")
    address, port = parse_rendezvous_endpoint(parameters.endpoint, -1)
    assert rank is not None
    handler = BoundRendezvous(address, port, rank, parameters.max_nodes, parameters.run_id, TIMEOUT_S)
    handler.listener = parameters.get_as_int("fd")
    assert (handler.listener is not None) == (handler.rank == 0), "the first node alone has the socket"
    return handler


def understood(arguments: list[str]) -> list[str]:
    """The arguments without SHUTDOWN_TIMEOUT where this torchrun does not know it, and waits for its own 30 s."""
    known = SHUTDOWN_TIMEOUT in torch.distributed.run.get_args_parser().format_help()
    return [argument for argument in arguments if known or not argument.startswith(f"{SHUTDOWN_TIMEOUT}=")]


def main() -> None:
    """Run torchrun, with `bound` among its rendezvous backends."""
    rendezvous_handler_registry.register(BACKEND, _create)
    torch.distributed.run.main(understood(sys.argv[1:]))


if __name__ == "__main__":
    main()
