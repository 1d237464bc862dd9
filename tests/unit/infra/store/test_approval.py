"""A database that `store.json` alone names is not connected to: somebody here must have named it as well."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_contracts.errors import StorageUnavailable, UsageError
from data_contracts.messages.children import StoreAddress
from data_contracts.messages.gang import Launch
from infra.files import replace_private
from infra.gang.node import LocalNodes
from infra.settings import known_stores, remember_store, state_folder
from infra.store import Store, layout, open_store
from infra.store.opening import STORE_POINTERS
from tests.support.approved import approve_here
from tests.support.by_hand import ByHand
from training.shard.worker import _writer

TRAINING = "trainings/k-0"


class Listener:
    """A port that nobody may connect to."""

    def __init__(self, server: socket.socket) -> None:
        self._socket = server
        self._socket.setblocking(False)
        port = self._socket.getsockname()[1]
        self.url = f"postgresql://x:env:SECRETENV_TOKEN@127.0.0.1:{port}/n?sslmode=disable"

    def was_called(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("SECRETENV_TOKEN", "the-secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Listener(server)


@pytest.fixture
def another_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From here on, a state folder that knows of no store."""
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "another"))
    return tmp_path / "another"


def tamper(store: Store, pointers: str) -> None:
    """Have `store.json` name a database, as whoever may write in the bucket can."""
    kept = getattr(store._backend, "_objects", store._backend)
    kept.delete(layout.STORE)
    kept.create(layout.STORE, json.dumps({"schema": 1, "pointers": pointers, "uri": store.uri}).encode())


REFUSED = {
    "a folder": "but a folder decides its names itself. Restore its store.json, or name another store.",
    "new here": "which nobody on this machine has approved; it was not connected to. If that database is the right "
    "one, name it as `pointers:` under `store:` in the spec, or run trainwright store init {uri} --pointers {name}.",
}
REFUSED["used before with its pointers in itself"] = REFUSED["new here"]


@pytest.mark.parametrize("case", REFUSED)
def test_a_database_that_nobody_here_named(case: str, request: pytest.FixtureRequest, listener: Listener) -> None:
    store: Store = request.getfixturevalue("folder_store" if case == "a folder" else "s3_store")
    if case.startswith("used"):
        remember_store(store.uri, store.storage_options, store.pointers)
    tamper(store, listener.url)
    with pytest.raises(UsageError) as raised:
        open_store(store.uri, store.storage_options)
    assert not listener.was_called()
    sentence = REFUSED[case].format(uri=store.uri, name=listener.url)
    assert str(raised.value) == f"The store {store.uri} says that its pointers are in {listener.url}, {sentence}"


def test_who_names_it_connects(s3_store: Store, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener hears of the one who named it, so that its silence above says something."""
    monkeypatch.setattr("infra.store.database._TRANSACTION_TRIES", 1)
    tamper(s3_store, listener.url.replace("sslmode", "connect_timeout=2&sslmode"))
    named = s3_store.read_json(layout.STORE)["pointers"]
    with pytest.raises(UsageError, match="store.pointers: nobody .* approved that env:SECRETENV_TOKEN"):
        open_store(s3_store.uri, s3_store.storage_options, pointers=named)
    assert not listener.was_called()
    approve_here(named, "env:SECRETENV_TOKEN")
    with pytest.raises(StorageUnavailable, match="does not answer"):
        open_store(s3_store.uri, s3_store.storage_options, pointers=named)
    assert listener.was_called()


def test_a_store_that_an_earlier_version_knew(
    named_store: Store, another_home: Path, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """It opens, once with a warning; another database is refused afterwards."""
    uri, options, pointers = named_store.uri, named_store.storage_options, named_store.pointers
    replace_private(state_folder() / "stores.json", json.dumps([{"uri": uri, "storage_options": options}]))
    for _ in range(2):
        assert open_store(uri, options, create=False).pointers == pointers
    assert [record.getMessage() for record in caplog.records if record.name == "trainwright"] == [
        f"The store {uri} has been used on this machine; its pointer database {pointers} is approved from now on."
    ]
    tamper(named_store, listener.url)
    with pytest.raises(UsageError, match="nobody on this machine has approved"):
        open_store(uri, options, create=False)
    assert not listener.was_called()


def test_a_child_is_told_and_remembers_nothing(named_store: Store, another_home: Path) -> None:
    uri, options, pointers = named_store.uri, named_store.storage_options, named_store.pointers
    assert open_store(uri, options, create=False, pointers=pointers).pointers == pointers
    address = StoreAddress(uri=uri, options=options, pointers=pointers)
    _writer(address.model_dump_json(), "datasets/k-0")
    assert known_stores() == []


def test_a_node_is_told(named_store: Store, another_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, in a state folder that knows of no store."""
    with ByHand(named_store, Launch(training=TRAINING, nodes=1, devices=1, heartbeat_s=0.1)) as hand:
        nodes = LocalNodes(named_store, hand.launch, hand.hub)
        nodes.start([0])
        try:
            hand.until(lambda: hand.joined or nodes.ended(), what=lambda: nodes.log(0))
            assert hand.joined, nodes.log(0)
        finally:
            nodes.end([0])
    monkeypatch.setenv(STORE_POINTERS, "sqlite:////another")
    with pytest.raises(UsageError, match="nobody on this machine has approved"):
        open_store(named_store.uri, named_store.storage_options, create=False)
