"""The Prefect server's process: `python -m infra.orchestrator.serve FD`.

`prefect server start` binds its port itself, so between looking for a free port and binding it a stranger may take
it. Here the parent binds, and the server takes the listening socket over as file descriptor FD.
"""

from __future__ import annotations

import socket
import sys


def main() -> None:
    """Serve Prefect's API and UI on the inherited socket until a signal ends it."""
    listener = socket.socket(fileno=int(sys.argv[1]))

    import uvicorn
    from prefect.server.api.server import create_app

    config = uvicorn.Config(create_app(final=True), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
