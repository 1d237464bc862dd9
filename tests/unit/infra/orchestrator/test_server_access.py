"""Which Host and which Origin our server answers, for HTTP and WebSocket alike."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from typing import Any

import pytest

from infra.orchestrator.serve import AccessCheck, addresses

PLACES = addresses("127.0.0.1", 4210)


def answer(scope: dict[str, Any], places: frozenset[str] = PLACES) -> int:
    """The status with which a request is answered; 200 if it reached what stands behind."""
    sent: list[dict[str, Any]] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(AccessCheck(behind, places)(scope, None, send))  # type: ignore[arg-type]
    return 403 if sent[0]["type"] == "websocket.close" else int(sent[0]["status"])


def request(*headers: tuple[bytes, bytes], method: str = "GET") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": "/api/health", "headers": list(headers)}


def socket_of(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "websocket", "path": "/api/events/out", "headers": list(headers)}


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        (None, False),
        (b"127.0.0.1:4210", True),
        (b"localhost:4210", True),
        (b"LocalHost:4210", True),
        (b"[::1]:4210", True),
        (b"127.0.0.1", False),
        (b"127.0.0.1:4211", False),
        (b"localhost", False),
        (b"rebound.example:4210", False),
        (b"localhost.rebound.example:4210", False),
        (b"127.0.0.1:4210.rebound.example", False),
        (b"rebound.example:4210@127.0.0.1:4210", False),
        (b"127.0.0.1:4210, rebound.example", False),
        (b" 127.0.0.1:4210", False),
        (b"192.0.2.7:4210", False),
        (b"", False),
    ],
)
def test_only_the_servers_own_names_are_answered(host: bytes | None, answered: bool) -> None:
    headers = [] if host is None else [(b"host", host)]
    assert answer(request(*headers)) == (200 if answered else 421)
    assert answer(socket_of(*headers)) == (200 if answered else 403)
    assert answer(request(*headers, (b"host", b"rebound.example"))) == 421


@pytest.mark.parametrize(
    ("origin", "known"),
    [
        (None, True),  # a program
        (b"http://127.0.0.1:4210", True),
        (b"http://localhost:4210", True),
        (b"https://localhost:4210", True),
        (b"null", False),
        (b"http://127.0.0.1:8000", False),
        (b"http://pages.example.com", False),
        (b"http://127.0.0.1:4210.example.com", False),
        (b"file://", False),
        (b"", False),
    ],
)
def test_a_page_from_elsewhere_changes_nothing(origin: bytes | None, known: bool) -> None:
    headers = [(b"host", b"127.0.0.1:4210"), *([] if origin is None else [(b"origin", origin)])]
    changing = {method: answer(request(*headers, method=method)) for method in ("POST", "PUT", "PATCH", "DELETE")}
    assert set(changing.values()) == {200 if known else 403}
    assert answer(socket_of(*headers)) == (200 if known else 403)
    # The browser and Prefect's CORS settings decide what the page may read.
    assert answer(request(*headers)) == answer({"type": "lifespan"}) == 200


def test_a_server_for_the_network_is_known_by_this_machines_names_and_the_one_it_was_given() -> None:
    everywhere = addresses("0.0.0.0", 4210, "https://prefect.example.com/api")
    assert {"127.0.0.1:4210", f"{socket.gethostname().lower()}:4210", "prefect.example.com"} <= everywhere
    assert "rebound.example:4210" not in everywhere
    assert "[fd00::7]:4210" in addresses("fd00::7", 4210)
    assert answer(request((b"host", b"prefect.example.com")), everywhere) == 200


HOST = (b"host", b"127.0.0.1:4210")
MALFORMED = [
    b"Basic " + base64.b64encode("é".encode()),
    b"Basic " + base64.b64encode(b"a:\xff"),
    b"Basic a",
    b"Basic \xe9",
    b"Basic",
    b"",
    b"Basic YTpi YTpi",
    b"basic YTpi",
    b"Bearer YTpi",
]


@pytest.mark.parametrize("value", MALFORMED)
def test_credentials_that_prefect_cannot_compare_are_refused_before_it(value: bytes) -> None:
    for headers in ([(b"authorization", value)], [(b"authorization", b"Basic YTpi"), (b"authorization", value)]):
        assert answer(request(HOST, *headers)) == 401
        assert answer(socket_of(HOST, *headers)) == 403


@pytest.mark.parametrize("credentials", [b"trainwright:right", b"wrong:one", b"no colon", b"a:b:c"])
def test_whether_credentials_are_right_is_for_prefect_to_ask(credentials: bytes) -> None:
    known = b"authorization", b"Basic " + base64.b64encode(credentials)
    assert answer(request(HOST, known)) == 200
    assert answer(socket_of(HOST, known)) == 200


def subscribed(first: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What reaches the server, and what it sends, when a subscriber's first message is this one and two more follow."""
    messages = [{"type": "websocket.connect"}, first, {"type": "websocket.receive", "text": "é ["}]
    received: list[dict[str, Any]] = []
    sent: list[dict[str, Any]] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        while len(received) < 3 and (not received or received[-1]["type"] != "websocket.disconnect"):
            received.append(await receive())

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(AccessCheck(behind, PLACES)(socket_of(HOST), receive, send))  # type: ignore[arg-type]
    return received, sent


@pytest.mark.parametrize("token", ["right", "a:b", None])
def test_a_subscription_begins_with_a_token(token: str | None) -> None:
    first = {"type": "websocket.receive", "text": json.dumps({"type": "auth", "token": token})}
    received, sent = subscribed(first)
    assert received[1:] == [first, {"type": "websocket.receive", "text": "é ["}]
    assert sent == []


@pytest.mark.parametrize(
    "first",
    [
        {"text": json.dumps({"type": "auth", "token": "é"})},
        {"text": json.dumps({"type": "auth", "token": 1})},
        {"text": json.dumps({"type": "auth", "token": ["a"]})},
        {"text": "[]"},
        {"text": "not JSON"},
        {"text": "[" * 100_000},
        {"bytes": b"\xff"},
        {"bytes": b"{}", "text": None},
    ],
)
def test_a_subscription_that_prefect_cannot_read_is_closed(first: dict[str, Any]) -> None:
    received, sent = subscribed({"type": "websocket.receive", **first})
    assert received[-1] == {"type": "websocket.disconnect", "code": 1008}
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": ""}]
