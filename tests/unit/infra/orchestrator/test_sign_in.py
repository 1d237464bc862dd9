"""The page that signs a browser in: what it takes and gives by HTTP, and that a token works once, for a minute.

(That a browser is signed in after it opened the link: tests/integration/test_signing_in.py.)
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from typing import Any

import httpx
import pytest

from infra.orchestrator.api import SIGN_IN_LINKS as LINKS
from infra.orchestrator.api import SIGN_IN_PAGE as PAGE
from infra.orchestrator.serve import TOKEN_S, SignIn, Tokens
from tests.support.clocks import Clock

PASSWORD = "trainwright:a-password-of-a-test"
CREDENTIALS = base64.b64encode(PASSWORD.encode()).decode()
ORIGIN = "http://127.0.0.1:4210"
KNOWN = {"Authorization": f"Basic {CREDENTIALS}"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def page(clock: Clock) -> SignIn:
    async def behind(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 299, "headers": headers})
        await send({"type": "http.response.body", "body": b"Prefect"})

    return SignIn(behind, PASSWORD, [ORIGIN, "http://[::1]:4210"], Tokens(clock))


def ask(page: SignIn, method: str, path: str, **request: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=page)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
            return await client.request(method, path, **request)

    return asyncio.run(asked())


def token(page: SignIn) -> str:
    return str(ask(page, "POST", LINKS, headers=KNOWN).raise_for_status().json()["token"])


@pytest.mark.parametrize(("age_s", "good"), [(0, True), (TOKEN_S - 0.001, True), (TOKEN_S, False), (1e6, False)])
def test_a_token_works_for_sixty_seconds(clock: Clock, age_s: float, good: bool) -> None:
    tokens = Tokens(clock)
    issued = tokens.issue()
    clock.now += age_s
    assert tokens.redeem(issued) is good
    assert not tokens.redeem(issued)


def test_tokens_do_not_disturb_each_other_and_the_oldest_go_first(clock: Clock) -> None:
    tokens = Tokens(clock)
    issued = [tokens.issue() for _ in range(150)]
    assert len(set(issued)) == 150
    assert [tokens.redeem(one) for one in issued] == [False] * 50 + [True] * 100


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": f"Basic {CREDENTIALS[:-2]}"},
        {"Authorization": f"Bearer {PASSWORD}"},
        {"Authorization": "Basic ÿ".encode("latin-1")},
    ],
)
def test_only_who_knows_the_password_gets_a_token(page: SignIn, headers: dict[str, Any]) -> None:
    refused = ask(page, "POST", LINKS, headers=headers)
    assert refused.status_code == 401
    assert "token" not in refused.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"token": ""}',
        b'{"token": null}',
        b'{"token": 7}',
        '{"token": "ÿ"}'.encode(),
        b"\xff",
        b"[" * 900,
        b"[" * 1024,
        b'{"token": "' + b"x" * 5000 + b'"}',
    ],
)
def test_anything_but_a_token_is_refused(page: SignIn, body: bytes) -> None:
    token(page)
    refused = ask(page, "POST", PAGE, content=body)
    assert (refused.status_code, refused.json().keys()) == (403, {"error"})


def test_a_body_without_end_is_not_read_to_its_end(page: SignIn) -> None:
    pieces = 0

    async def receive() -> dict[str, Any]:
        nonlocal pieces
        pieces += 1
        return {"type": "http.request", "body": b"x" * 500, "more_body": True}

    async def send(message: Any) -> None:
        pass

    asyncio.run(page({"type": "http", "method": "POST", "path": PAGE, "headers": []}, receive, send))  # type: ignore[arg-type]
    assert pieces == 3


@pytest.mark.parametrize(("method", "path"), [("GET", LINKS), ("PUT", PAGE), ("DELETE", PAGE), ("HEAD", LINKS)])
def test_other_methods_do_nothing(page: SignIn, method: str, path: str) -> None:
    assert ask(page, method, path, headers=KNOWN).status_code == 405


def test_the_page_runs_its_own_script_alone_and_nobody_keeps_it(page: SignIn) -> None:
    shown = ask(page, "GET", PAGE)
    policy = shown.headers["content-security-policy"]
    script = re.search("<script>(.*?)</script>", shown.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (shown.headers["cache-control"], shown.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "http://" not in shown.text
    assert "https://" not in shown.text
    exchanged = ask(page, "POST", PAGE, json={"token": token(page)})
    assert exchanged.headers["cache-control"] == "no-store"
    assert ask(page, "POST", LINKS, headers=KNOWN).headers["cache-control"] == "no-store"


def test_other_requests_pass_and_their_pages_run_no_script_of_others_and_ask_no_other_server(page: SignIn) -> None:
    passed = ask(page, "GET", "/docs")
    assert (passed.status_code, passed.text) == (299, "Prefect")
    rules = dict(rule.split(" ", 1) for rule in passed.headers["content-security-policy"].split("; "))
    assert rules["script-src"] == "'self' 'unsafe-eval' blob:"
    assert rules["connect-src"] == f"'self' {ORIGIN}"
    assert rules["frame-ancestors"] == rules["object-src"] == "'none'"
    assert rules["form-action"] == rules["base-uri"] == "'self'"
    assert rules["img-src"] == "'self' data: blob:"


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("path", ["/", "/dashboard", "/runs/flow-run/1?tab=logs", "/v2/"])
def test_a_browser_gets_the_page_first_at_each_address_and_then_what_it_asked_for(page: SignIn, path: str) -> None:
    first = ask(page, "GET", path, headers=BROWSER)
    assert first.text == ask(page, "GET", PAGE).text
    assert (first.status_code, first.headers["cache-control"]) == (200, "no-store")
    assert "'sha256-" in first.headers["content-security-policy"]
    checked = ask(page, "GET", path, headers={**BROWSER, "Cookie": "a=b; trainwright-checked=1"})
    assert (checked.status_code, checked.text) == (299, "Prefect")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/assets/index.js", {"Accept": "*/*"}),
        ("GET", "/api/health", BROWSER),
        ("GET", "/", {**BROWSER, **KNOWN}),  # a proxy has checked who asks
        ("POST", "/", BROWSER),
        ("GET", "/", {"Accept": ""}),
    ],
)
def test_programs_scripts_and_a_proxy_never_get_the_page(
    page: SignIn, method: str, path: str, headers: dict[str, str]
) -> None:
    assert ask(page, method, path, headers=headers).text == "Prefect"
