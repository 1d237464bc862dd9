"""The Prefect server's process: `python -m infra.orchestrator.server.serve FD`.

`prefect server start` binds its port itself, so another process may take the port between the search for a free port
and the binding. Here the parent binds, and the server takes over the listening socket as file descriptor FD. Three
layers stand in front of Prefect: a check of who calls (`server_access.py`), the names of those who signed in at a
team's proxy (`signed_in.py`), and the page that signs a browser in (`sign_in.py`). A team's server (`team_server.py`)
is served in the same way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from infra.orchestrator.server.server_access import AccessCheck, addresses, origins
from infra.orchestrator.server.signed_in import SignedIn
from infra.orchestrator.variables import PAGES_URL, SERVER_AUTH

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


def main() -> None:
    """Serve Prefect's API and UI on the inherited socket until a signal ends the server."""
    auth_string = os.environ.get(SERVER_AUTH)
    assert auth_string, "this server is never started without a password"
    # Only the owner may read the database and the files of leases, too.
    os.umask(0o077)

    from infra.orchestrator.server.idle import do_less_when_idle

    do_less_when_idle()
    serve(socket.socket(fileno=int(sys.argv[1])), auth_string, os.environ.get(PAGES_URL))


def serve(listener: socket.socket, auth_string: str, pages_url: str | None) -> None:
    """Serve Prefect's API and UI on a listening socket until a signal ends the server.

    Args:
        auth_string: `user:password`, which everyone must show.
        pages_url: the address of the API by which browsers call it, which is a name of this server, too.
    """
    os.umask(0o077)

    import uvicorn
    from prefect.server.api.server import create_app

    from infra.orchestrator.server.idle import Server
    from infra.orchestrator.server.server_metrics import serve_metrics
    from infra.orchestrator.server.sign_in import SignIn

    queue_writers()
    answer_503_without_connection()
    host, port = listener.getsockname()[:2]
    places = addresses(host, port, pages_url)
    app: Any = create_app(final=True)
    serve_metrics(app.api_app)
    prefect = SignedIn(SignIn(app, auth_string, origins(places)), auth_string)
    config = uvicorn.Config(AccessCheck(prefect, places), log_level="warning", access_log=False)
    Server(config).run(sockets=[listener])


def queue_writers() -> None:
    """Make each transaction of the server on SQLite wait for its turn to write.

    Prefect begins most transactions DEFERRED. If such a transaction reads, and writes after another has written, SQLite
    refuses it at once ("database is locked", which clients see as 503). The busy timeout does not apply, because
    waiting would not help. IMMEDIATE transactions take the write lock first, and wait for it.
    """
    from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    @contextlib.asynccontextmanager
    async def begin_to_write(
        self: AioSqliteConfiguration, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncIterator[AsyncSessionTransaction]:
        # A nested transaction would wait for its outer transaction for ever.
        within = SQLITE_BEGIN_MODE.get() is not None
        async with begin(self, session, with_for_update=with_for_update or not within) as transaction:
            await session.connection()
            inner = SQLITE_BEGIN_MODE.set("DEFERRED")
            try:
                yield transaction
            finally:
                SQLITE_BEGIN_MODE.reset(inner)

    AioSqliteConfiguration.begin_transaction = begin_to_write  # type: ignore[method-assign]


def answer_503_without_connection() -> None:
    """Answer 503 to a request that gets no connection to the database in time.

    Prefect answers 500, which its clients do not try again: the end of a flow run that was promoted became `Failed`.
    """
    from prefect.server.api import server
    from sqlalchemy import exc as database_errors

    is_retryable = server.is_client_retryable_exception

    def is_retryable_now(exc: Exception) -> bool:
        return isinstance(exc, database_errors.TimeoutError) or is_retryable(exc)

    server.is_client_retryable_exception = is_retryable_now


if __name__ == "__main__":
    main()
