"""The Prefect server's process: `python -m infra.orchestrator.serve FD`.

`prefect server start` binds its port itself, so between looking for a free port and binding it a stranger may take
it. Here the parent binds, and the server takes the listening socket over as file descriptor FD.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


def main() -> None:
    """Serve Prefect's API and UI on the inherited socket until a signal ends it."""
    listener = socket.socket(fileno=int(sys.argv[1]))

    import uvicorn
    from prefect.server.api.server import create_app

    queue_writers()
    config = uvicorn.Config(create_app(final=True), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


def queue_writers() -> None:
    """Make each transaction of the server on SQLite wait for its turn to write.

    Prefect begins most of them DEFERRED. Such a one that reads, and writes after another has written, is refused at
    once ("database is locked", which clients are told as 503): the busy timeout does not apply, because waiting would
    not help. IMMEDIATE ones take the right to write first, and wait for it.
    """
    from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    @contextlib.asynccontextmanager
    async def begin_to_write(
        self: AioSqliteConfiguration, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncIterator[AsyncSessionTransaction]:
        # One within another would wait for it for ever.
        within = SQLITE_BEGIN_MODE.get() is not None
        async with begin(self, session, with_for_update=with_for_update or not within) as transaction:
            await session.connection()
            inner = SQLITE_BEGIN_MODE.set("DEFERRED")
            try:
                yield transaction
            finally:
                SQLITE_BEGIN_MODE.reset(inner)

    AioSqliteConfiguration.begin_transaction = begin_to_write  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
