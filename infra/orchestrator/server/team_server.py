"""A Prefect server that a team shares: on PostgreSQL, with a password, in the foreground until a signal ends it.

Prefect's own settings say where it listens, who may call it and which database it uses. With
PREFECT_REDIS_MESSAGING_URL several such servers work on one database, because what Prefect otherwise keeps in the
server's memory is then in Redis.
It migrates no database: `prefect server database upgrade` does that, after a backup (`docs/team-server.md`).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from data_contracts.errors import StorageUnavailable, UsageError
from infra.orchestrator.server.server import ip_address_of
from infra.orchestrator.variables import ANY_SERVER, LEASE_STORAGE, SERVER_AUTH
from infra.telemetry import prefect_env

DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
REDIS = "PREFECT_REDIS_MESSAGING_URL"
LEAST_PASSWORD = 16
_MAKE_ONE = f"Make one: export {SERVER_AUTH}=team:$(openssl rand -hex 32)"
_ALWAYS = {
    **ANY_SERVER,
    # A server that migrates when it starts does so before anybody has made a backup.
    "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
    # If two servers do so at once, one of them ends (`register_blocks`).
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
}
_WITH_REDIS = {
    "PREFECT_SERVER_EVENTS_MESSAGING_BROKER": "prefect_redis.messaging",
    "PREFECT_SERVER_EVENTS_MESSAGING_CACHE": "prefect_redis.messaging",
    "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect_redis.ordering",
    LEASE_STORAGE: "prefect_redis.lease_storage",
    "PREFECT_SERVER_WORKER_CHANNEL_CLEANUP_QUEUE_STORAGE": "prefect_redis.cleanup_queue",
}
# What does not use PREFECT_REDIS_MESSAGING_URL: background tasks, and the queue of clean-ups.
_REDIS_TOO = ("PREFECT_SERVER_DOCKET_URL", "PREFECT_REDIS_WORKER_CLEANUP_QUEUE_URL")

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Settings:
    """What Prefect's settings say of the server. Those with a password are never shown."""

    host: str = "127.0.0.1"
    port: int = 4200
    auth_string: str = field(default="", repr=False)
    database: str = field(default="", repr=False)
    redis: str = field(default="", repr=False)
    pages_url: str | None = None


def start() -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        UsageError: a setting is missing or wrong, the port is taken, or the database's schema is another version's.
        StorageUnavailable: the database does not answer, or Prefect could not start.
    """
    settings = read_settings()
    check(settings)
    from infra.orchestrator.server.serve import serve
    from infra.orchestrator.server.server_database import check_schema, register_blocks

    check_schema()
    register_blocks()
    with _listen(str(ip_address_of(settings.host)), settings.port) as listener:
        host, port = listener.getsockname()[:2]
        several = "; with Redis, others may serve the same database" if settings.redis else ""
        log.info("The Prefect server listens on %s port %d%s.", host, port, several)
        try:
            serve(listener, settings.auth_string, settings.pages_url)
        except SystemExit as error:  # how uvicorn says that Prefect could not start
            sentence = "The Prefect server ended while starting."
            raise StorageUnavailable(sentence, remedy="Its reason stands above.") from error


def read_settings() -> Settings:
    """The settings of Prefect in this process, which is not imported before, for a team's server."""
    assert "prefect.settings" not in sys.modules, "Prefect was imported before it was told what a team's server needs"
    os.environ.update(environment(os.environ))
    from infra.orchestrator.server.server_database import server_settings

    server = server_settings()
    return Settings(
        host=server.api.host,
        port=server.api.port,
        auth_string=server.api.auth_string.get_secret_value() if server.api.auth_string else "",
        database=server.database.connection_url.get_secret_value() if server.database.connection_url else "",
        redis=os.environ.get(REDIS, ""),
        pages_url=server.ui.api_url,
    )


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a team's server needs beside those of whoever starts it."""
    redis, always = environ.get(REDIS), {**_ALWAYS, **prefect_env(environ)}
    if not redis:
        return always
    return {**always, **_WITH_REDIS, **dict.fromkeys(_REDIS_TOO, redis)}


def check(settings: Settings) -> None:
    """Refuse a server that would answer without a password, or that does not use PostgreSQL.

    Raises:
        UsageError: one sentence with the setting's name, and without its value if that holds a password.
    """
    ip_address_of(settings.host)
    if not 1 <= settings.port <= 65_535:
        raise UsageError(f"PREFECT_SERVER_API_PORT is {settings.port}, which is not a port from 1 to 65535.")
    user, _, password = settings.auth_string.partition(":")
    if not settings.auth_string:
        raise UsageError(
            f"{SERVER_AUTH} is not set, and a team's server answers nobody without a password, wherever it listens.",
            remedy=_MAKE_ONE,
        )
    plain = settings.auth_string.isascii() and settings.auth_string.isprintable() and " " not in settings.auth_string
    if not (user and password and plain):
        raise UsageError(f"{SERVER_AUTH} is not user:password in ASCII characters without spaces.", remedy=_MAKE_ONE)
    if len(password) < LEAST_PASSWORD:
        raise UsageError(
            f"{SERVER_AUTH} has a password of {len(password)} characters, and {LEAST_PASSWORD} are the least.",
            remedy=_MAKE_ONE,
        )
    if settings.database.partition(":")[0] != "postgresql+asyncpg":
        raise UsageError(
            f"{DATABASE} names no PostgreSQL database, such as postgresql+asyncpg://USER:PASSWORD@HOST/NAME.",
            remedy="For a server of your own on this machine, without PostgreSQL: `trainwright up`.",
        )
    _check_redis(settings.redis)


def _check_redis(url: str) -> None:
    """Redis holds calls that the server unpickles and carries out."""
    if not url:
        return
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("redis", "rediss") and parts.hostname
    except ValueError:
        known = None
    if not known:
        raise UsageError(f"{REDIS} is not an address such as redis://:PASSWORD@HOST:6379/0.")
    if not parts.password:
        raise UsageError(
            f"{REDIS} holds no password, and whoever may write to Redis can run code in the Prefect server.",
            remedy="Set one in Redis (requirepass) and in the address: redis://:PASSWORD@HOST:6379/0.",
        )
    if importlib.util.find_spec("prefect_redis") is None:
        raise UsageError(
            f"{REDIS} is set, and the package prefect-redis is not installed.", remedy="pip install prefect-redis"
        )


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        return listener
    except OSError as error:
        listener.close()
        raise UsageError(
            f"This machine cannot listen on {host} port {port}: {error.strerror}.",
            remedy="Correct PREFECT_SERVER_API_HOST or PREFECT_SERVER_API_PORT.",
        ) from error
