"""Which backups are refused. (One that is made and restored: tests/integration/test_team_server.py.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, UsageError
from data_contracts.records import ServerBackup
from infra.orchestrator import team_server
from infra.orchestrator.team_server import Database, back_up, check_backup, read_backup, restore

BACKUP = ServerBackup(
    made="2026-11-26T03:00:00+00:00", trainwright="0.1.0", prefect="3.8.8", database_schema="d4a7e1c93f52",
    postgresql=15, size=4, digest="1f" * 32,
)  # fmt: skip
EMPTY = Database(None, 0, 15)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "backup.json").write_text(json.dumps(BACKUP.to_json()))
    (tmp_path / "prefect.dump").write_bytes(b"dump")
    return tmp_path


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_server, "look_at_database", lambda: Database("d4a7e1c93f52", 36, 15))
    monkeypatch.setattr(team_server, "connection", lambda: {"PGDATABASE": "prefect"})


@pytest.mark.parametrize(
    ("database", "known", "sentence"),
    [
        (EMPTY, True, None),
        (Database(None, 0, 17), True, None),
        (EMPTY, False, "The backup was made by Trainwright 0.1.0 with Prefect 3.8.8, whose schema d4a7e1c93f52 the "
                       "installed Prefect does not know. Install those versions, and restore with them."),
        (Database(None, 0, 14), True, "The backup is of PostgreSQL 15, and the database is of PostgreSQL 14"),
        (Database(None, 1, 15), True, "The database has tables already (1)"),
        (Database("d4a7e1c93f52", 36, 15), True, "The database has tables already (36)"),
    ],
)  # fmt: skip
def test_a_backup_of_another_version_and_a_database_in_use(
    database: Database, known: bool, sentence: str | None
) -> None:
    if sentence is None:
        check_backup(BACKUP, database, knows_schema=known)
        return
    with pytest.raises(UsageError) as caught:
        check_backup(BACKUP, database, knows_schema=known)
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "kind", "sentence"),
    [
        (None, UsageError, "holds no whole backup: backup.json, which is written last, is missing"),
        ("{", CorruptError, "is not the record of a backup"),
        ("[]", CorruptError, "is not the record of a backup"),
        ("[" * 100_000, CorruptError, "is not the record of a backup"),
        ('{"schema_version": 1}', CorruptError, "is not the record of a backup"),
        ('{"schema_version": 2, "new": 1}', UsageError, "has schema 2, newer than the 1 that this Trainwright reads"),
    ],
)
def test_a_record_that_cannot_be_read(
    content: str | None, kind: type[TrainwrightError], sentence: str, folder: Path
) -> None:
    (folder / "backup.json").unlink() if content is None else (folder / "backup.json").write_text(content)
    with pytest.raises(kind) as caught:
        read_backup(folder)
    assert sentence in caught.value.message


@pytest.mark.parametrize("content", [b"dumb", b"dum", b"dump and more", None])
def test_a_damaged_dump_is_not_restored(content: bytes | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(team_server, "look_at_database", lambda: EMPTY)
    monkeypatch.setattr(team_server, "is_known_schema", lambda schema: True)
    monkeypatch.setattr(team_server, "_call", lambda *given, **named: calls.append(given))
    dump = folder / "prefect.dump"
    dump.unlink() if content is None else dump.write_bytes(content)
    with pytest.raises(CorruptError, match="prefect.dump"):
        restore(folder)
    assert calls == []


@pytest.mark.usefixtures("database")
def test_a_backup_needs_a_new_folder_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UsageError, match="full is not empty"):
        back_up(tmp_path / "full")
    monkeypatch.setattr(team_server, "look_at_database", lambda: EMPTY)
    with pytest.raises(UsageError, match="no tables of Prefect, so there is nothing to back up"):
        back_up(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("database")
def test_a_folder_that_was_there_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_server, "_dump", lambda path: path.write_bytes(b"dump"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty").chmod(0o777)
    back_up(tmp_path / "empty")
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("program", "kind", "sentence"),
    [
        (None, UsageError, "The program pg_dump is not installed here"),
        ("echo part; echo 'pg_dump: error: server version mismatch' >&2; exit 1", StorageUnavailable,
         "pg_dump failed: pg_dump: error: server version mismatch."),
        ("exit 3", StorageUnavailable, "pg_dump failed: 3."),
    ],
)  # fmt: skip
def test_a_dump_that_fails_leaves_nothing(
    program: str | None, kind: type[TrainwrightError], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    if program is not None:
        (programs / "pg_dump").write_text(f"#!/bin/sh\n{program}\n")
        (programs / "pg_dump").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(kind) as caught:
        back_up(tmp_path / "new")
    assert sentence in caught.value.message
    assert list((tmp_path / "new").iterdir()) == []
