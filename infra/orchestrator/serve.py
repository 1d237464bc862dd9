"""The Prefect server's process: `python -m infra.orchestrator.serve FD`. A team's server is served in the same way.

`prefect server start` binds its port itself, so another process may take the port between the search for a free port
and the binding. Here the parent binds, and the server takes over the listening socket as file descriptor FD. Three
layers stand in front of Prefect.

`AccessCheck` decides who may call: programs, and pages that came from the server itself. A web page whose name is made
to resolve to this machine (DNS rebinding) is recognised by its Host, and a page from elsewhere that posts here by its
Origin. Both are checked before Prefect sees the request, for HTTP and WebSocket alike. Programs send no Origin; Prefect
itself checks their password. Credentials that Prefect cannot compare are refused here: it answers them with a traceback
in its log, so anyone who reaches the port could fill the disk.

`SignedIn` knows who asks if a team's proxy asks for a person who has signed in there (`team_server.py`). The proxy
shows this server's own password, and the person's name and role in headers, which it takes from nobody else. A name in
the form of a flow run that waits is then replaced by that name. A subscriber greets Prefect with a password: where the
proxy has checked the person's, Prefect gets its own.

`SignIn` signs a browser in to Prefect's pages, which by themselves greet it with an error and an empty field.
`trainwright ui` sends the password to `/trainwright/links` and gets a token. The link that it prints carries the token
in its fragment, which browsers never send. The page posts the token to its own address, gets the credentials, stores
them where Prefect's pages look for them (`prefect-password` in localStorage) and opens those pages. Any other address
of Prefect's pages shows this page first, too. Its script checks the stored credentials, which the server does not see.
If they are valid, a cookie lets the same address pass for a few seconds; otherwise the page says what to paste. The
cookie opens nothing: Prefect's API asks for the password at each request.

Behind them, `GET /api/metrics` shows Prometheus what is deployed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ipaddress
import json
import math
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import uvicorn
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from infra.metrics import SERVER_METRICS
from infra.orchestrator.api import PAGES_URL, SERVER_AUTH, SIGN_IN_LINKS, SIGN_IN_PAGE, SIGNED_IN

if TYPE_CHECKING:
    from fastapi import FastAPI
    from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    Row = tuple[tuple[str, ...], float]


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_READING = ("GET", "HEAD", "OPTIONS")
PERSON, ROLE = b"x-trainwright-person", b"x-trainwright-role"
_FORM = re.compile(r"/api/flow_runs/.*/resume/*", re.DOTALL)
# Before Prefect checks values, it fills in variables, and it fetches what a schema refers to. Pages ask for this check
# before they send an answer, which is checked again then.
_FORM_CHECK = "/api/ui/schemas/validate"
# sign_in.html sets it.
_CHECKED = b"trainwright-checked=1"
TOKEN_S = 60.0
# More than a person prints in a minute; the oldest are dropped first.
_MOST_TOKENS = 100
_MOST_TOKEN_BYTES = 1024
# Prefect's own pages compile some of their forms and start workers from blobs. Their analytics requests are blocked:
# the pages send them even if the server has switched analytics off. Images from elsewhere (logos of blocks, images in
# an artifact's Markdown) would reveal to others who looks at what.
_PREFECT_PAGES = (
    "script-src 'self' 'unsafe-eval' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "img-src 'self' data: blob:; frame-ancestors 'none'; "
    "connect-src 'self' "
)
# Flow runs that ended earlier are not read: a scrape must cost little, however old the server is.
_LAST = timedelta(days=1)
_ENDS = ("COMPLETED", "FAILED", "CRASHED")


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
            await _refuse(scope, receive, send, *refusal)
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


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, sentence: str) -> None:
    if scope["type"] == "websocket":
        # Closed before it was accepted: the client gets 403.
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
    else:
        await PlainTextResponse(f"{sentence}\n", status)(scope, receive, send)


class SignedIn:
    """ASGI middleware that puts the name of who signed in at the proxy into what they answer.

    Args:
        password: the auth string of the Prefect server behind it.
    """

    def __init__(self, app: ASGIApp, password: str) -> None:
        self._app = app
        self._password = password
        self._credentials = b"Basic " + base64.b64encode(password.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the name in it."""
        headers = dict(scope.get("headers", ()))
        shows_password = hmac.compare_digest(headers.get(b"authorization", b""), self._credentials)
        if scope["type"] == "websocket" and shows_password:
            receive = _greeting(receive, self._password)
        elif scope["type"] == "http" and scope["path"] == _FORM_CHECK and headers.get(ROLE, b"operator") != b"operator":
            await JSONResponse({"errors": [], "valid": True})(scope, receive, send)
            return
        elif scope["type"] == "http" and _FORM.fullmatch(scope["path"]):
            if not shows_password:  # before a body is read, which may be of any size
                await JSONResponse({"exception_message": "Unauthorized"}, 401)(scope, receive, send)
                return
            person = headers.get(PERSON, b"").decode(errors="replace")
            try:
                body = named(await body_of(receive), person)
            except ValueError as error:
                await JSONResponse({"detail": str(error)}, 422)(scope, receive, send)
                return
            kept = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
            scope = {**scope, "headers": [*kept, (b"content-length", str(len(body)).encode())]}
            receive = _before(body, receive)
        await self._app(scope, receive, send)


def named(body: bytes, person: str) -> bytes:
    """The answer to a form with the name of who signed in.

    Args:
        body: a request to resume a flow run, as JSON.
        person: "" if nobody signed in at a proxy: the name stays as it was stated.

    Raises:
        ValueError: a person's answer is not JSON, or would be put together by Prefect, which could exchange the name.
    """
    try:
        request: Any = json.loads(body) if body else None
    except (ValueError, RecursionError):
        raise ValueError("The answer is not JSON.") from None
    form = request.get("run_input") if isinstance(request, dict) else None
    if not isinstance(form, dict):
        return body
    if person and "__prefect_kind" in json.dumps(form):
        raise ValueError("An answer through the proxy has plain values only.")
    if "your_name" in form:
        stated = str(form["your_name"])
        form["your_name"] = f"{SIGNED_IN}{person}" if person else stated.removeprefix(SIGNED_IN)
    return json.dumps(request).encode()


async def body_of(receive: Receive, most_bytes: float = math.inf) -> bytes:
    """The body of a request; of a larger one than `most_bytes`, not much more than that."""
    body, more = b"", True
    while more and len(body) <= most_bytes:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _before(body: bytes, receive: Receive) -> Receive:
    """What a request sends: first this body, then what is left, which is that its client has gone."""
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def receive_body() -> Message:
        return messages.pop() if messages else await receive()

    return receive_body


def _greeting(receive: Receive, password: str) -> Receive:
    """A subscriber's messages, the first of which shows the password. `AccessCheck` has looked at its form."""
    greeted = False

    async def receive_greeting() -> Message:
        nonlocal greeted
        message = await receive()
        if message["type"] == "websocket.receive" and not greeted:
            greeted = True
            message["text"] = json.dumps({**json.loads(message["text"]), "token": password})
        return message

    return receive_greeting


class Tokens:
    """Tokens, each valid for one sign-in within 60 seconds.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expiry: dict[str, float] = {}

    def issue(self) -> str:
        """A new token of 256 random bits."""
        for old in list(self._expiry)[: -_MOST_TOKENS + 1]:
            del self._expiry[old]
        token = secrets.token_urlsafe(32)
        self._expiry[token] = self._clock() + TOKEN_S
        return token

    def redeem(self, token: str) -> bool:
        """Whether the token is valid, and use it up. The time of a comparison does not depend on the token."""
        now = self._clock()
        self._expiry = {known: until for known, until in self._expiry.items() if now < until}
        matching = [known for known in self._expiry if hmac.compare_digest(known.encode(), token.encode())]
        for known in matching:
            del self._expiry[known]
        return bool(matching)


class SignIn:
    """ASGI middleware that serves the page that signs in, and adds a content security policy to all other responses.

    A browser that opens another page gets this page in its place until its credentials are checked.

    Without the policy, a script from elsewhere (Prefect's `/docs` names some) could read the stored password.

    Args:
        password: the auth string of the Prefect server behind it.
        origins: the server's own origins, to which its pages may connect.
    """

    def __init__(self, app: ASGIApp, password: str, origins: Iterable[str], tokens: Tokens | None = None) -> None:
        self._app = app
        # A policy cannot name numeric IPv6 addresses.
        named = " ".join(origin for origin in origins if "[" not in origin)
        self._fence = f"{_PREFECT_PAGES}{named}".encode()
        self._credentials = base64.b64encode(password.encode()).decode()
        self._tokens = tokens or Tokens()
        self._html = (Path(__file__).with_name("sign_in.html")).read_text()
        self._headers = {
            "content-security-policy": _policy(self._html),
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request if it is for the page."""
        if scope["type"] == "http" and _opens_page_unchecked(scope):
            response: Response = HTMLResponse(self._html)
        elif scope["type"] != "http" or scope["path"] not in (SIGN_IN_PAGE, SIGN_IN_LINKS):
            await self._app(scope, receive, _fenced(send, self._fence))
            return
        else:
            response = await self._answer(scope, receive)
        response.headers.update(self._headers)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        route = scope["method"], scope["path"]
        if route == ("GET", SIGN_IN_PAGE):
            return HTMLResponse(self._html)
        if route == ("POST", SIGN_IN_LINKS):
            return self._link(dict(scope["headers"]).get(b"authorization", b""))
        if route == ("POST", SIGN_IN_PAGE):
            return self._exchange(await _token_in(receive))
        return JSONResponse({"error": "Method not allowed."}, 405)

    def _link(self, authorization: bytes) -> Response:
        if not hmac.compare_digest(authorization, f"Basic {self._credentials}".encode()):
            return JSONResponse({"error": "Wrong password."}, 401)
        return JSONResponse({"token": self._tokens.issue()})

    def _exchange(self, token: str) -> Response:
        if not self._tokens.redeem(token):
            return JSONResponse({"error": "This link is old or used; `trainwright ui` prints a new one."}, 403)
        return JSONResponse({"credentials": self._credentials})


def _opens_page_unchecked(scope: Scope) -> bool:
    """Whether a browser opens one of Prefect's pages, and neither the script nor a proxy has checked its credentials.

    Scripts and programs do not ask for HTML. A proxy of `trainwright server proxy` adds the server's credentials.
    """
    headers = dict(scope["headers"])
    return (
        scope["method"] == "GET"
        and scope["path"] not in (SIGN_IN_PAGE, SIGN_IN_LINKS)
        and not scope["path"].startswith("/api/")
        and headers.get(b"accept", b"").startswith(b"text/html")
        and b"authorization" not in headers
        and _CHECKED not in headers.get(b"cookie", b"")
    )


async def _token_in(receive: Receive) -> str:
    """The token in the request's body, or ''."""
    body = await body_of(receive, _MOST_TOKEN_BYTES)
    try:
        token = json.loads(body[:_MOST_TOKEN_BYTES])["token"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return token if isinstance(token, str) and token.isascii() else ""


def _fenced(send: Send, policy: bytes) -> Send:
    async def send_with_policy(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"content-security-policy", policy)]
        await send(message)

    return send_with_policy


def _policy(html: str) -> str:
    """A content security policy that allows only this page's own script and style."""
    script, style = (_hash(re.search(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)) for tag in ("script", "style"))
    rules = ["default-src 'none'", f"script-src {script}", f"style-src {style}", "connect-src 'self'"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"])


def _hash(element: re.Match[str] | None) -> str:
    assert element is not None, "sign_in.html has one script and one style"
    return f"'sha256-{base64.b64encode(hashlib.sha256(element[1].encode()).digest()).decode()}'"


def serve_metrics(api: FastAPI) -> None:
    """Let the server's API answer with its metrics."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

    async def metrics() -> Response:
        registry = CollectorRegistry()
        for metric, rows in zip(SERVER_METRICS, await _rows(), strict=True):
            gauge = Gauge(metric.name, metric.help, metric.labels, registry=registry)
            for labels, value in rows:
                gauge.labels(*labels).set(value)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    api.add_api_route("/metrics", metrics, include_in_schema=False)


async def _rows() -> list[list[Row]]:
    """The labels and values of each of SERVER_METRICS."""
    import sqlalchemy as sa
    from prefect.server.database import provide_database_interface

    db, now = provide_database_interface(), datetime.now(UTC)
    run, deployment, flow, queue, pool = db.FlowRun, db.Deployment, db.Flow, db.WorkQueue, db.WorkPool
    deployed = sa.select(pool.name, pool.status).join(queue, queue.work_pool_id == pool.id)
    deployed = deployed.join(deployment, deployment.work_queue_id == queue.id).distinct()
    late = sa.select(flow.name, deployment.name, sa.func.min(run.next_scheduled_start_time))
    # Prefect never calls a run late that waits to be executed again.
    late = late.where(run.state_type == "SCHEDULED", run.state_name.in_(("Late", "AwaitingRetry")))
    late = late.where(run.next_scheduled_start_time < now)
    ended = sa.select(flow.name, deployment.name, run.state_type, sa.func.max(run.end_time))
    ended = ended.where(run.end_time > now - _LAST, run.state_type.in_(_ENDS)).group_by(run.state_type)

    def of_deployments(query: Any) -> Any:
        query = query.select_from(run).join(deployment, deployment.id == run.deployment_id)
        return query.join(flow, flow.id == deployment.flow_id).group_by(flow.name, deployment.name)

    async with db.session_context() as session:
        return [
            [((name,), float(status == "READY")) for name, status in await session.execute(deployed)],
            [
                ((f"{of}/{name}",), (now - since).total_seconds())
                for of, name, since in await session.execute(of_deployments(late))
            ],
            [
                ((f"{of}/{name}", str(getattr(kind, "value", kind)).lower()), at.timestamp())
                for of, name, kind, at in await session.execute(of_deployments(ended))
            ],
        ]


def main() -> None:
    """Serve Prefect's API and UI on the inherited socket until a signal ends the server."""
    auth_string = os.environ.get(SERVER_AUTH)
    assert auth_string, "this server is never started without a password"
    # Only the owner may read the database and the files of leases, too.
    os.umask(0o077)

    queue_writers()
    serve(socket.socket(fileno=int(sys.argv[1])), auth_string, os.environ.get(PAGES_URL))


def serve(listener: socket.socket, auth_string: str, pages_url: str | None) -> None:
    """Serve Prefect's API and UI on a listening socket until a signal ends the server.

    Args:
        auth_string: `user:password`, which everyone must show.
        pages_url: the address of the API by which browsers call it, which is a name of this server, too.
    """
    os.umask(0o077)

    from prefect.server.api.server import create_app

    host, port = listener.getsockname()[:2]
    places = addresses(host, port, pages_url)
    app: Any = create_app(final=True)
    serve_metrics(app.api_app)
    answer_503_without_connection(app.api_app)
    prefect = SignedIn(SignIn(app, auth_string, origins(places)), auth_string)
    config = uvicorn.Config(AccessCheck(prefect, places), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


def queue_writers() -> None:
    """Make each transaction of the server on SQLite wait for its turn to write.

    Prefect begins most transactions DEFERRED. If such a transaction reads, and writes after another has written, SQLite
    refuses it at once ("database is locked", which clients see as 503). The busy timeout does not apply, because
    waiting would not help. IMMEDIATE transactions take the write lock first, and wait for it.
    """
    from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration
    from prefect.server.database.dependencies import set_database_config
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    class Queued(AioSqliteConfiguration):
        @contextlib.asynccontextmanager
        async def begin_transaction(
            self, session: AsyncSession, with_for_update: bool = False
        ) -> AsyncIterator[AsyncSessionTransaction]:
            # A nested transaction would wait for its outer transaction for ever.
            nested = SQLITE_BEGIN_MODE.get() is not None
            async with super().begin_transaction(session, with_for_update or not nested) as transaction:
                await session.connection()
                inner = SQLITE_BEGIN_MODE.set("DEFERRED")
                try:
                    yield transaction
                finally:
                    SQLITE_BEGIN_MODE.reset(inner)

    set_database_config(Queued(PREFECT_API_DATABASE_CONNECTION_URL.value()))


def answer_503_without_connection(api: FastAPI) -> None:
    """Answer 503 to a request that gets no connection to the database in time.

    Prefect answers 500, which its clients do not try again: the end of a flow run that was promoted became `Failed`.
    """
    from sqlalchemy.exc import TimeoutError as NoConnection

    def answer(request: object, error: Exception) -> Response:
        return JSONResponse({"exception_message": "Service Unavailable"}, 503)

    api.add_exception_handler(NoConnection, answer)


if __name__ == "__main__":
    main()
