"""Back up and restore the database of a team's Prefect server, by PostgreSQL's own `pg_dump` and `pg_restore`.

A backup is a folder with `prefect.dump` and `backup.json`. The dump holds the secrets of Prefect's blocks, so only its
owner may read it. A store of models is not in it (`docs/team-server.md`).
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from data_contracts.foreign_files import parse_json, read_plain
from data_contracts.operations import ServerBackup
from infra.files import check_new, file_digest, replace_private, tag
from infra.orchestrator.server import server_database
from infra.orchestrator.server.server_database import Database

RECORD = "backup.json"
DUMP = "prefect.dump"


def back_up(folder: Path) -> ServerBackup:
    """Write a backup of the database into a new folder.

    Raises:
        UsageError: the folder is not new, `pg_dump` is missing, or the database has no tables of Prefect.
        StorageUnavailable: the database does not answer, or `pg_dump` failed.
    """
    check_new(folder, "Name a new folder.")
    found = server_database.look()
    if found.schema is None:
        raise UsageError("The database has no tables of Prefect, so there is nothing to back up.")
    made = datetime.now(UTC).isoformat(timespec="seconds")
    dump = folder / DUMP
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may have been there, empty; another user's is refused
        _dump(dump)
        tag(folder)
        backup = ServerBackup(
            made=made,
            trainwright=metadata.version("trainwright"),
            prefect=server_database.prefect_version(),
            database_schema=found.schema,
            postgresql=found.postgresql,
            size=dump.stat().st_size,
            digest=file_digest(dump),
        )
        replace_private(folder / RECORD, json.dumps(backup.to_json(), indent=1))
    except FileExistsError:
        raise UsageError(f"Another backup is being written to {folder}.", remedy="Name a new folder.") from None
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}.", remedy="Name another folder.") from error
    return backup


def _dump(path: Path) -> None:
    """Write the dump, which only this user may read; nothing is left of one that fails."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        try:
            _call(["pg_dump", "--format=custom"], stdout=file)
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise


def restore(folder: Path) -> tuple[ServerBackup, bool]:
    """Put a backup into an empty database: all of it or nothing; the backup, and whether an upgrade must follow.

    Raises:
        UsageError: no whole backup, one of another version, or the database is not empty.
        CorruptError: the dump is not the one of which the record tells.
        StorageUnavailable: the database does not answer, or `pg_restore` failed.
    """
    backup = read(folder)
    check(backup, server_database.look(), known=server_database.is_known(backup.database_schema))
    dump = folder / DUMP
    try:
        whole = dump.stat().st_size == backup.size and file_digest(dump) == backup.digest
    except OSError as error:
        raise CorruptError(
            f"The dump {dump} cannot be read: {error.strerror}.", remedy="Use another backup."
        ) from error
    if not whole:
        raise CorruptError(f"{dump} is not the dump that {RECORD} beside it tells of.", remedy="Use another backup.")
    # Owners and comments of extensions are those of the old server; its roles need not exist here.
    options = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges", "--no-comments"]
    _call(["pg_restore", *options, f"--dbname={server_database.connection()['PGDATABASE']}", str(dump)])
    return backup, backup.database_schema != server_database.needed_schema()


def read(folder: Path) -> ServerBackup:
    """The record of a backup; UsageError if there is none that this version reads."""
    path = folder / RECORD
    try:
        return ServerBackup.from_json(parse_json(read_plain(path)))
    except FileNotFoundError:
        raise UsageError(
            f"{folder} holds no whole backup: {RECORD}, which is written last, is missing.",
            remedy="Name the folder that `trainwright server backup` wrote.",
        ) from None
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", remedy=error.remedy) from error
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        raise CorruptError(f"{path} is not the record of a backup.", remedy="Use another backup.") from error


def check(backup: ServerBackup, database: Database, *, known: bool) -> None:
    """Refuse a backup that the installed versions or this database cannot take.

    Args:
        known: whether the installed Prefect knows the schema in the backup.
    """
    made_by = f"Trainwright {backup.trainwright} with Prefect {backup.prefect}"
    if not known:
        raise UsageError(
            f"The backup was made by {made_by}, whose schema {backup.database_schema} the installed Prefect does not "
            "know.",
            remedy="Install those versions, and restore with them.",
        )
    if backup.postgresql > database.postgresql:
        raise UsageError(
            f"The backup is of PostgreSQL {backup.postgresql}, and the database is of PostgreSQL "
            f"{database.postgresql}, which cannot take it.",
            remedy=f"Restore into PostgreSQL {backup.postgresql} or later.",
        )
    if database.tables:
        raise UsageError(
            f"The database has tables already ({database.tables}), and a backup is restored into an empty one alone.",
            remedy="Stop the servers that use it, then `dropdb` and `createdb` it, or name another database.",
        )


def _call(command: list[str], stdout: IO[bytes] | int = subprocess.DEVNULL) -> None:
    """Run a program of PostgreSQL's on Prefect's database; its last line says why it failed."""
    environ = {**os.environ, **server_database.connection()}
    try:
        done = subprocess.run(command, env=environ, stdout=stdout, stderr=subprocess.PIPE, check=False)
    except FileNotFoundError:
        raise UsageError(
            f"The program {command[0]} is not installed here.",
            remedy="Install PostgreSQL's client programs, of the server's version or later.",
        ) from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise StorageUnavailable(f"{command[0]} failed: {lines[-1] if lines else done.returncode}.")
