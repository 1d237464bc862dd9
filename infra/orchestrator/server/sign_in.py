"""The page that signs a browser in to Prefect's pages, which by themselves greet it with an error and an empty field.

`trainwright ui` sends the password to `/trainwright/links` and gets a token. The link that it prints carries the token
in its fragment, which browsers never send. The page posts the token to its own address, gets the credentials, stores
them where Prefect's pages look for them (`prefect-password` in localStorage) and opens those pages.

Any other address of Prefect's pages shows this page first, too. Its script checks the stored credentials, which the
server does not see. If they are valid, a cookie lets the same address pass for a few seconds; otherwise the page says
what to paste. The cookie opens nothing: Prefect's API asks for the password at each request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse, JSONResponse, Response

from infra.orchestrator.server.signed_in import body_of
from infra.orchestrator.variables import SIGN_IN_LINKS, SIGN_IN_PAGE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# sign_in.html sets it.
_CHECKED = b"trainwright-checked=1"
TOKEN_S = 60.0
# More than a person prints in a minute; the oldest are dropped first.
_MOST_TOKENS = 100
_MOST_BYTES = 1024
# Prefect's own pages compile some of their forms and start workers from blobs. Their analytics requests are blocked:
# the pages send them even if the server has switched analytics off. Images from elsewhere (logos of blocks, images in
# an artifact's Markdown) would reveal to others who looks at what.
_PREFECT_PAGES = (
    "script-src 'self' 'unsafe-eval' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "img-src 'self' data: blob:; frame-ancestors 'none'; "
    "connect-src 'self' "
)


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
    body = await body_of(receive, _MOST_BYTES)
    try:
        token = json.loads(body[:_MOST_BYTES])["token"]
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
