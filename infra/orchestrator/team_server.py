"""A Prefect server that a team shares: on PostgreSQL, with a password, in the foreground until a signal ends it.

Prefect's own settings say where it listens, who may call it and which database it uses. With
PREFECT_REDIS_MESSAGING_URL several such servers work on one database, because what Prefect otherwise keeps in the
server's memory is then in Redis. It migrates no database: `prefect server database upgrade` does that, after a backup
(`docs/team-server.md`). Only the environment of this process says which database it is; no name or password of it is in
an error.

`write_proxy` writes nginx's configuration, with a password and a role for each person. nginx decides by method and path
alone: `proxy_paths.toml` says which role each of Prefect's paths needs, and `proxy.conf` is the text around it. The
server behind it learns a person's name from a header (`SignedIn` in `serve.py`).
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import logging
import os
import re
import socket
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import ValidationError

from data_contracts.errors import StorageUnavailable, UsageError
from infra.files import replace_private, replace_text
from infra.orchestrator.api import ANY_SERVER, LEASE_STORAGE, PAGES_URL, SERVER_AUTH
from infra.orchestrator.server import ip_address_of, listen_on
from infra.telemetry import prefect_env

if TYPE_CHECKING:
    from prefect.settings.models.server import ServerSettings


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
_UPGRADE = "prefect server database upgrade --yes"
# Any number that no other program takes in this database.
_BLOCKS_LOCK = 0x747261696E
_BLOCKS_WAIT_S = 0.5
# From the role that may do least to the one that may do most.
ROLES = ("reader", "reviewer", "operator")
_HERE = Path(__file__).parent
# One part of a path, in which no character has a second meaning: neither "%2f" nor a leading dot.
_SEGMENT = "(?:[A-Za-z0-9_~-]|%20)(?:[A-Za-z0-9._~:@+-]|%20)*"

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
    check_settings(settings)
    from infra.orchestrator.serve import serve

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
    os.environ.update(server_environment(os.environ))
    server = server_settings()
    return Settings(
        host=server.api.host,
        port=server.api.port,
        auth_string=server.api.auth_string.get_secret_value() if server.api.auth_string else "",
        database=server.database.connection_url.get_secret_value() if server.database.connection_url else "",
        redis=os.environ.get(REDIS, ""),
        pages_url=server.ui.api_url,
    )


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a team's server needs beside those of whoever starts it."""
    redis, always = environ.get(REDIS), {**_ALWAYS, **prefect_env(environ)}
    if not redis:
        return always
    return {**always, **_WITH_REDIS, **dict.fromkeys(_REDIS_TOO, redis)}


def check_settings(settings: Settings) -> None:
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
    if not _names_database(settings.database):
        raise UsageError(
            f"{DATABASE} names no PostgreSQL database, such as postgresql+asyncpg://USER:PASSWORD@HOST/NAME.",
            remedy="For a server of your own on this machine, without PostgreSQL: `trainwright up`.",
        )
    _check_redis(settings.redis)


def _names_database(url: str) -> bool:
    """Whether an address names a database of PostgreSQL, as SQLAlchemy reads it."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
        # What SQLAlchemy connects with: parts after the `?` come before those in front of it.
        given = parts.get_dialect()().create_connect_args(parts)[1]
    except (ArgumentError, ValueError):
        return False
    return parts.drivername == "postgresql+asyncpg" and bool(given.get("database"))


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
    try:
        return listen_on(host, port)
    except OSError as error:
        raise UsageError(
            f"This machine cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}.",
            remedy="Correct PREFECT_SERVER_API_HOST or PREFECT_SERVER_API_PORT.",
        ) from error


def find_schema() -> str | None:
    """The revision of Prefect's schema in the database; None if Prefect never used it.

    Raises: StorageUnavailable if the database does not answer.
    """
    import asyncpg
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return asyncio.run(_find_schema())
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError, TimeoutError) as error:
        reason = str(getattr(error, "orig", error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise StorageUnavailable(
            f"The database of the Prefect server does not answer: {reason}.",
            remedy="Check PREFECT_SERVER_DATABASE_CONNECTION_URL and PostgreSQL's log.",
        ) from error


def check_schema() -> None:
    """Refuse a database whose schema is not the one of the installed Prefect.

    Raises:
        UsageError: the database is empty, or of an earlier or later Prefect.
        StorageUnavailable: it does not answer.
    """
    found = find_schema()
    if found == needed_schema():
        return
    prefect = f"Prefect {metadata.version('prefect')}"
    if found is None:
        raise UsageError(f"The database has no tables of {prefect} yet.", remedy=f"Make them: {_UPGRADE}")
    raise UsageError(
        f"The database has the schema {found} of another Prefect, and {prefect} needs {needed_schema()}.",
        remedy=f"If that was an earlier one, make a backup (`pg_dump`), then: {_UPGRADE}. If it was a later one, "
        "install it again, or restore the backup from before.",
    )


def register_blocks() -> None:
    """Tell the database which types of blocks the installed Prefect has, one server after the other.

    If two servers do so at once, as Prefect does when it starts, one of them ends: its key exists already.
    """
    asyncio.run(_register_blocks())


def needed_schema() -> str:
    """The revision of the schema that the installed Prefect needs."""
    from alembic.script import ScriptDirectory
    from prefect.server.database import provide_database_interface
    from prefect.server.database.alembic_commands import alembic_config

    scripts = ScriptDirectory.from_config(alembic_config())
    # Prefect has a folder of migrations for each kind of database, and chooses in its env.py.
    scripts.version_locations = [str(provide_database_interface().orm.versions_dir)]
    head = scripts.get_current_head()
    assert head is not None, "Prefect has no migrations"
    return head


def server_settings() -> ServerSettings:
    """Prefect's settings of a server; UsageError if it cannot read one, whose value is not shown."""
    try:
        from prefect.settings import get_current_settings

        return get_current_settings().server
    except ValidationError as error:
        names = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise UsageError(
            f"Prefect cannot read a setting of this process: {names} of {error.title}.",
            remedy="Correct it in the environment (PREFECT_…) or in the Prefect profile.",
        ) from None


async def _find_schema() -> str | None:
    from prefect.server.database import provide_database_interface
    from sqlalchemy import text

    engine = await provide_database_interface().engine()
    try:
        async with engine.connect() as connection:
            known = (await connection.execute(text("SELECT to_regclass('alembic_version')"))).scalar_one()
            if known is None:
                return None
            return (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()
    finally:
        await engine.dispose()


async def _register_blocks() -> None:
    from prefect.server.database import provide_database_interface
    from prefect.server.models.block_registration import run_block_auto_registration
    from sqlalchemy import text

    database = provide_database_interface()
    engine = await database.engine()
    try:
        async with engine.connect() as connection:
            # Asked again and again: Prefect ends a statement that waits for longer than its database timeout (10 s).
            while not (await connection.execute(text(f"SELECT pg_try_advisory_lock({_BLOCKS_LOCK})"))).scalar_one():
                await asyncio.sleep(_BLOCKS_WAIT_S)
            async with await database.session() as session:
                await run_block_auto_registration(session=session)
    finally:
        # Closing the connection frees the lock.
        await engine.dispose()


def write_proxy(folder: Path, settings: Settings) -> None:
    """Write nginx's configuration of this server into a folder; the lists of people and roles there stay as they are.

    Raises:
        UsageError: no address with https is set, or the folder cannot be written.
    """
    address = re.fullmatch(r"https://([A-Za-z0-9.-]+(?::\d{1,5})?)/api/?", settings.pages_url or "")
    if address is None:
        raise UsageError(
            f"{PAGES_URL} is {settings.pages_url!r}, which is not the address of a proxy with TLS.",
            remedy="Set the address under which people will reach the API, such as https://prefect.example/api.",
        )
    place = folder.resolve()
    if not re.fullmatch(r"[A-Za-z0-9/._-]+", str(place)):
        raise UsageError(f"{place} has a character that nginx reads in another way.", remedy="Name another folder.")
    credentials = base64.b64encode(settings.auth_string.encode()).decode()
    try:
        place.mkdir(parents=True, exist_ok=True)
        replace_private(place / "server-password", f'proxy_set_header Authorization "Basic {credentials}";\n')
        replace_text(place / "proxy.conf", _configuration(place, settings, address[1]))
        for name in ("people", "roles"):
            (place / name).touch(mode=0o640)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}.", remedy="Name another folder.") from error


def rules() -> Iterator[tuple[str, str]]:
    """Regular expressions of `METHOD path`, each with the least role that may do so; the first that matches counts."""
    roles = tomllib.loads((_HERE / "proxy_paths.toml").read_text())
    pages = roles.pop("pages")
    for role in ("nobody", *reversed(ROLES)):
        for method, paths in roles[role].items():
            for path in paths:
                yield f"^{method} /api{_pattern(path)}$", role
    yield f"^GET (?:{'|'.join(map(_pattern, pages['paths']))})$", ROLES[0]
    yield f"^GET /(?:{'|'.join(pages['folders'])})(?:/.*)?$", ROLES[0]


def _pattern(path: str) -> str:
    return "[^/]+".join(re.escape(part) for part in re.split(r"\{[^}]*\}", path))


def _configuration(folder: Path, settings: Settings, address: str) -> str:
    name, _, port = address.partition(":")
    # An address: a name may have another one, too, on which somebody else may listen and would get the password.
    listens = str(ip_address_of(settings.host))
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listens, listens)
    may = ((role, least) for place, role in enumerate(ROLES) for least in ROLES[: place + 1])
    values = {
        "folder": str(folder),
        "segment": _SEGMENT,
        "rules": "\n".join(f'    "~{pattern}" {role};' for pattern, role in rules()),
        "roles": "\n".join(f'    "{role} {least}" yes;' for role, least in may),
        "server": f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}",
        "port": port or "443",
        "name": name,
        "host": address,
    }
    text = (_HERE / "proxy.conf").read_text()
    return re.sub(r"\{(\w+)\}", lambda field: values.get(field[1], field[0]), text)
