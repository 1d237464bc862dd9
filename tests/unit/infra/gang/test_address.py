"""Which address a host gives the other nodes of its gang."""

from __future__ import annotations

import socket

import pytest

from infra.gang.node import own_address
from infra.gang.rank_files import ADDRESS


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)


def test_the_one_that_is_named_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, "10.1.2.3")
    assert own_address(["http://127.0.0.1:4200/api"]) == "10.1.2.3"


@pytest.mark.parametrize("peers", [[], [""], ["http://127.0.0.1:4200/api"], ["http://no-such-host.invalid/api", "s3"]])
def test_with_everything_on_this_host_it_is_loopback(peers: list[str]) -> None:
    assert own_address(peers) == "127.0.0.1"


def test_else_the_one_that_leads_to_the_first_peer_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe(socket.socket):
        def connect(self, target: object) -> None:
            self.target = target

        def getsockname(self) -> tuple[str, int]:
            host = self.target[0]  # type: ignore[index]
            return ("127.0.0.1" if host.startswith("127.") else "192.0.2.7", 1)

    monkeypatch.setattr(socket, "socket", Probe)
    assert own_address(["http://127.0.0.1:4200/api", "http://192.0.2.99:9000"]) == "192.0.2.7"
