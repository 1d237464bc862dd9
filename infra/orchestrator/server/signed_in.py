"""Who asks, if a team's proxy asks for a person who has signed in there (`proxy.py`).

The proxy shows this server's own password, and the person's name and role in headers, which it takes from nobody else.
A name in the form of a flow run that waits is then replaced by that name. A subscriber greets Prefect with a password:
where the proxy has checked the person's, Prefect gets its own.
"""

from __future__ import annotations

import base64
import hmac
import json
import math
import re
from typing import TYPE_CHECKING, Any

from infra.orchestrator.variables import SIGNED_IN

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PERSON, ROLE = b"x-trainwright-person", b"x-trainwright-role"
_FORM = re.compile(r"/api/flow_runs/.*/resume/*", re.DOTALL)
# Before Prefect checks values, it fills in variables, and it fetches what a schema refers to. Pages ask for this check
# before they send an answer, which is checked again then.
_CHECK = "/api/ui/schemas/validate"


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
        elif scope["type"] == "http" and scope["path"] == _CHECK and headers.get(ROLE, b"operator") != b"operator":
            await _answer({"errors": [], "valid": True}, 200, send)
            return
        elif scope["type"] == "http" and _FORM.fullmatch(scope["path"]):
            if not shows_password:  # before a body is read, which may be of any size
                await _answer({"exception_message": "Unauthorized"}, 401, send)
                return
            person = headers.get(PERSON, b"").decode(errors="replace")
            try:
                body = named(await body_of(receive), person)
            except ValueError as error:
                await _answer({"detail": str(error)}, 422, send)
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


async def _answer(value: dict[str, object], status: int, send: Send) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


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
    """A subscriber's messages, the first of which shows the password. `server_access.py` has looked at its form."""
    greeted = False

    async def receive_greeting() -> Message:
        nonlocal greeted
        message = await receive()
        if message["type"] == "websocket.receive" and not greeted:
            greeted = True
            message["text"] = json.dumps({**json.loads(message["text"]), "token": password})
        return message

    return receive_greeting
