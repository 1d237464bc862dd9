"""Decide who may call our Prefect server: programs, and pages that came from the server itself.

A web page whose name is made to resolve to this machine (DNS rebinding) is recognised by its Host, and a page from
elsewhere that posts here by its Origin. Both are checked before Prefect sees the request, for HTTP and WebSocket alike.
Programs send no Origin; Prefect itself checks their password. Credentials that Prefect cannot compare are refused here:
it answers them with a traceback in its log, so anyone who reaches the port could fill the disk.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_READING = ("GET", "HEAD", "OPTIONS")


def addresses(host: str, port: int, pages_url: str | None = None) -> frozenset[str]:
    """The `host:port` values under which a server that listens on `host` may be called.

    Args:
        pages_url: PREFECT_SERVER_UI_API_URL, which names another address of the server.
    """
    hosts = {*_LOOPBACK, host}
    if ipaddress.ip_address(host).is_unspecified:
        own = (address.address.partition("%")[0] for found in psutil.net_if_addrs().values() for address in found)
        hosts |= {*own, socket.gethostname(), socket.getfqdn()}
    places = {f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in hosts}
    if pages_url:
        places.add(urlsplit(pages_url).netloc.rpartition("@")[2])
    return frozenset(place.lower() for place in places)


def origins(places: Iterable[str]) -> list[str]:
    """The origins of pages that this server serves at `places`, sorted."""
    return sorted(f"{scheme}://{place}" for place in places for scheme in ("http", "https"))


class AccessCheck:
    """ASGI middleware that refuses a foreign Host (421), changes by a foreign page (403) and bad credentials (401).

    Args:
        places: the result of `addresses`.
    """

    def __init__(self, app: ASGIApp, places: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(place.encode() for place in places)
        self._origins = frozenset(origin.encode() for origin in origins(places))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] in ("http", "websocket") and (refusal := self._refusal(scope)):
            await _refuse(scope, send, *refusal)
        else:
            checked = _GreetingCheck(receive, send) if scope["type"] == "websocket" else receive
            await self._app(scope, checked, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 421, "This server is not known by that name. Use the address that `trainwright up` prints."
        origins = [value.lower() for name, value in scope["headers"] if name == b"origin"]
        reads = scope["type"] == "http" and scope["method"] in _READING
        if not reads and any(origin not in self._origins for origin in origins):
            return 403, "A page from elsewhere may not change anything here."
        if not all(_comparable(value) for name, value in scope["headers"] if name == b"authorization"):
            return 401, "The Authorization header is not Basic with base64 of ASCII."
        return None


class _GreetingCheck:
    """A subscriber's messages. A first message that Prefect cannot compare closes the connection."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._greeted = False

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "websocket.receive" and not self._greeted:
            self._greeted = True
            if not _is_greeting(message.get("text")):
                await self._send({"type": "websocket.close", "code": 1008, "reason": ""})
                return {"type": "websocket.disconnect", "code": 1008}
        return message


def _comparable(authorization: bytes) -> bool:
    """Whether a header is what Prefect reads as credentials: `Basic` and base64 of ASCII."""
    scheme, _, encoded = authorization.partition(b" ")
    try:
        return scheme == b"Basic" and base64.b64decode(encoded, validate=True).isascii() and encoded != b""
    except ValueError:
        return False


def _is_greeting(text: str | None) -> bool:
    """Whether a subscriber's first message is an object whose token, if it has one, is ASCII."""
    try:
        greeting = json.loads(text or "")
    except (ValueError, RecursionError):
        return False
    if not isinstance(greeting, dict):
        return False
    token = greeting.get("token")
    return token is None or (isinstance(token, str) and token.isascii())


async def _refuse(scope: Scope, send: Send, status: int, sentence: str) -> None:
    if scope["type"] == "websocket":
        # Closed before it was accepted: the client gets 403.
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    body = f"{sentence}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
