"""The PostgreSQL database of a team's server: whether it answers, and whether its schema is this Prefect's.

Only the environment of this process says which database that is; no name or password of it is in an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from data_contracts.errors import StorageUnavailable, UsageError

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory
    from prefect.settings.models.server import ServerSettings
    from prefect.settings.models.server.database import SQLAlchemyTLSSettings

_UPGRADE = "prefect server database upgrade --yes"
# Any number that no other program takes in this database.
_BLOCKS_LOCK = 0x747261696E
_PAUSED = "SELECT name FROM work_pool WHERE is_paused ORDER BY name"
_TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"


@dataclass(frozen=True)
class Database:
    """What a database holds.

    Attributes:
        schema: the revision of Prefect's schema; None if Prefect never used the database.
        tables: how many tables it has, of whomever.
        postgresql: major version of the server.
        paused: its work pools that are paused.
    """

    schema: str | None
    tables: int
    postgresql: int
    paused: tuple[str, ...] = ()


def look() -> Database:
    """What Prefect's database holds now.

    Raises:
        UsageError: it is not a PostgreSQL database.
        StorageUnavailable: it does not answer.
    """
    connection()
    import asyncpg
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return asyncio.run(_look())
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
    found = look().schema
    if found == needed_schema():
        return
    prefect = f"Prefect {prefect_version()}"
    if found is None:
        raise UsageError(f"The database has no tables of {prefect} yet.", remedy=f"Make them: {_UPGRADE}")
    if is_known(found):
        raise UsageError(
            f"The database has the schema {found} of an earlier Prefect, and {prefect} needs {needed_schema()}.",
            remedy=f"Make a backup (`trainwright server backup`), then: {_UPGRADE}",
        )
    raise UsageError(
        f"The database has the schema {found}, which {prefect} does not know: a later Prefect has used it.",
        remedy="Install that version again, or restore the backup from before.",
    )


def register_blocks() -> None:
    """Tell the database which types of blocks the installed Prefect has, one server after the other.

    If two servers do so at once, as Prefect does when it starts, one of them ends: its key exists already.
    """
    asyncio.run(_register_blocks())


def needed_schema() -> str:
    """The revision of the schema that the installed Prefect needs."""
    head = _scripts().get_current_head()
    assert head is not None, "Prefect has no migrations"
    return head


def is_known(schema: str) -> bool:
    """Whether the installed Prefect can bring a database with this schema up to date."""
    return any(script.revision == schema for script in _scripts().walk_revisions())


def connection() -> dict[str, str]:
    """The variables by which PostgreSQL's programs find Prefect's database; UsageError if it is another kind."""
    database = server_settings().database
    url = database.connection_url
    tls = database.sqlalchemy.connect_args.tls
    return {**variables_of(url.get_secret_value() if url else ""), **variables_of_tls(tls)}


def server_settings() -> ServerSettings:
    """Prefect's settings of a server; UsageError if it cannot read one, whose value is not shown."""
    from pydantic import ValidationError

    try:
        from prefect.settings import get_current_settings

        return get_current_settings().server
    except ValidationError as error:
        names = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise UsageError(
            f"Prefect cannot read a setting of this process: {names} of {error.title}.",
            remedy="Correct it in the environment (PREFECT_…) or in the Prefect profile.",
        ) from None


def variables_of(url: str) -> dict[str, str]:
    """The variables by which PostgreSQL's programs find a database that SQLAlchemy names by an address.

    A password in an argument could be read by every user of the machine.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
        # What SQLAlchemy connects with: parts after the `?` come before those in front of it.
        given = parts.get_dialect()().create_connect_args(parts)[1]
    except (ArgumentError, ValueError):
        parts, given = None, {}
    if parts is None or parts.get_backend_name() != "postgresql" or not given.get("database"):
        raise UsageError(
            "PREFECT_SERVER_DATABASE_CONNECTION_URL names no PostgreSQL database, such as "
            "postgresql+asyncpg://USER:PASSWORD@HOST/NAME."
        )
    named: Mapping[str, Any] = {
        "PGHOST": given.get("host"),
        "PGPORT": given.get("port"),
        "PGUSER": given.get("user"),
        "PGPASSWORD": given.get("password"),
        "PGDATABASE": given["database"],
        "PGSSLMODE": given.get("ssl") or given.get("sslmode"),
    }
    several = {name: value if isinstance(value, list | tuple) else [value] for name, value in named.items() if value}
    return {name: ",".join(map(str, values)) for name, values in several.items()}


def variables_of_tls(tls: SQLAlchemyTLSSettings) -> dict[str, str]:
    """The variables by which PostgreSQL's programs check the server as Prefect does with these settings."""
    if not tls.enabled:
        return {}
    named = {
        "PGSSLMODE": "verify-full" if tls.check_hostname else "verify-ca",
        # Without a file, the certificates that the system trusts; programs before PostgreSQL 16 refuse the word.
        "PGSSLROOTCERT": tls.ca_file or "system",
        "PGSSLCERT": tls.cert_file,
        "PGSSLKEY": tls.key_file,
    }
    return {name: value for name, value in named.items() if value}


def prefect_version() -> str:
    """Version of the installed Prefect."""
    import prefect

    return prefect.__version__


def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory
    from prefect.server.database import provide_database_interface
    from prefect.server.database.alembic_commands import alembic_config

    scripts = ScriptDirectory.from_config(alembic_config())
    # Prefect has a folder of migrations for each kind of database, and chooses in its env.py.
    scripts.version_locations = [str(provide_database_interface().orm.versions_dir)]
    return scripts


async def _look() -> Database:
    from prefect.server.database import provide_database_interface
    from sqlalchemy import text

    engine = await provide_database_interface().engine()
    try:
        async with engine.connect() as connection:
            version = (await connection.execute(text("SHOW server_version_num"))).scalar_one()
            tables = (await connection.execute(text(_TABLES))).scalar_one()
            known = (await connection.execute(text("SELECT to_regclass('alembic_version')"))).scalar_one()
            asked = text("SELECT version_num FROM alembic_version")
            schema = (await connection.execute(asked)).scalar() if known is not None else None
            paused = (await connection.execute(text(_PAUSED))).scalars().all() if schema is not None else ()
        return Database(schema, tables, int(version) // 10_000, tuple(paused))
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
            await connection.execute(text(f"SELECT pg_advisory_lock({_BLOCKS_LOCK})"))
            async with await database.session() as session:
                await run_block_auto_registration(session=session)
    finally:
        # Closing the connection frees the lock.
        await engine.dispose()
