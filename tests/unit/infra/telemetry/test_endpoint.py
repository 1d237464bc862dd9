"""The endpoint that Prometheus pulls: nothing without the secret, and nothing beside the page."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from infra import metrics as module
from infra.metrics import MOST_CLIENTS, Endpoint, MetricSample

TINY = {"pipeline": "tiny", "pool": "gpus", "queue": "default"}
TOKEN = "a-secret-of-the-test"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(module, "CLIENT_S", 600.0)
    served = Endpoint("127.0.0.1", [0], TOKEN, TINY, lambda: [MetricSample("goodput_ratio", 0.5)])
    yield served
    served.close()


def answer(port: int, path: str = "/metrics", token: str | None = f"Bearer {TOKEN}") -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request("GET", path, headers={} if token is None else {"Authorization": token})
        got = connection.getresponse()
        return got.status, got.read().decode()


def test_the_page_alone_is_there_for_whoever_has_the_secret(endpoint: Endpoint) -> None:
    status, body = answer(endpoint.port)
    assert status == 200
    assert 'trainwright_goodput_ratio{pipeline="tiny",pool="gpus",queue="default"} 0.5' in body
    assert answer(endpoint.port, "/")[0] == 404
    assert answer(endpoint.port, "/metrics?x=1")[0] == 200


@pytest.mark.parametrize("token", [None, "", "Bearer", "Bearer wrong", TOKEN, f"Basic {TOKEN}", "Bearer \xe4"])
@pytest.mark.parametrize("path", ["/metrics", "/"])
def test_nobody_else_gets_anything(path: str, token: str | None, endpoint: Endpoint) -> None:
    assert answer(endpoint.port, path, token) == (401, "")


def test_clients_that_send_nothing_take_few_threads_and_files_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENT_S", 600.0)
    endpoint = Endpoint("127.0.0.1", [0], TOKEN, TINY, list)
    before, address = threading.active_count(), ("127.0.0.1", endpoint.port)
    silent = [socket.create_connection(address, timeout=120) for _ in range(MOST_CLIENTS)]
    with socket.create_connection(address, timeout=120) as more:
        assert more.recv(1) == b"", "one too many is turned away at once"
    assert threading.active_count() <= before + MOST_CLIENTS
    for one in silent:
        one.close()
    while threading.active_count() > before:
        time.sleep(0.01)
    assert answer(endpoint.port)[0] == 200
    endpoint.close()


def test_a_port_that_is_taken_leaves_the_next_of_the_range(endpoint: Endpoint) -> None:
    second = Endpoint("127.0.0.1", [endpoint.port, 0], TOKEN, TINY, list)
    assert second.port != endpoint.port
    second.close()
    with pytest.raises(OSError, match="in use"):
        Endpoint("127.0.0.1", [endpoint.port], TOKEN, TINY, list)
