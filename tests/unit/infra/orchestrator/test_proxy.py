"""The configuration of a team's proxy: each path of the locked Prefect has a role, and answers get their author's name.

(What a real nginx makes of it: tests/integration/test_proxy.py.)
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from infra.orchestrator.serve import SignedIn, named
from infra.orchestrator.team_server import Settings, write_proxy
from tests.support.proxy import API, PAGES, role_of

SETTINGS = Settings(auth_string="team:a-long-enough-password", pages_url="https://prefect.example/api")
ANSWER = {"decision": "approve", "reason": "recall is what we need", "your_name": "Grace"}


def prefects_own() -> set[str]:
    """`METHOD path` of all that the locked Prefect answers below /api."""
    from fastapi.routing import APIWebSocketRoute
    from prefect.server.api.server import create_app

    api = create_app(ephemeral=True).api_app
    answered = {f"{method.upper()} {path}" for path, methods in api.openapi()["paths"].items() for method in methods}
    routers = [route.original_router for route in api.routes if hasattr(route, "original_router")]
    sockets = {f"WS {one.path}" for router in routers for one in router.routes if isinstance(one, APIWebSocketRoute)}
    assert len(sockets) == 5
    return answered | sockets


def test_every_path_of_the_locked_prefect_has_one_role() -> None:
    named_paths = Counter(f"{method} {path}" for _, method, path in API)
    assert [path for path, times in named_paths.items() if times > 1] == []
    assert set(named_paths) == prefects_own()


def test_each_path_is_recognised_as_what_it_is() -> None:
    asked = {f"{method} /api{path.replace('{', '').replace('}', '')}": role for role, method, path in API}
    assert {path: role_of(path) for path in asked} == asked


def test_prefects_pages_are_for_every_role_and_what_is_beside_them_for_none() -> None:
    import prefect

    folders = {"": Path(prefect.__ui_static_path__), "v2/": Path(prefect.__ui_v2_static_path__)}
    files = [f"/{below}{path.relative_to(at)}" for below, at in folders.items() for path in at.rglob("*.*")]
    assert len(files) > 100
    assert [file for file in files if role_of(f"GET {file}") != "reader"] == ["/index.html"]
    for path in PAGES:
        assert role_of(f"GET {path}") == "reader", path
    for path in ("/docs", "/redoc", "/openapi.json", "/api", "/api/docs", "/api/openapi.json", "/api/static/x",
                 "/trainwright/links", "/trainwright/sign-in", "/metrics", "/v3"):  # fmt: skip
        assert role_of(f"GET {path}") == "nobody", path
        assert role_of(f"POST {path}") == "nobody", path


def names_in(body: Any, person: str) -> Any:
    return json.loads(named(json.dumps(body).encode(), person))["run_input"]["your_name"]


def test_an_answer_carries_the_name_of_who_signed_in_whatever_it_states() -> None:
    for stated in ("Grace", "signed in as grace", "", 7, None, ["grace"]):
        assert names_in({"run_input": {**ANSWER, "your_name": stated}}, "ada") == "signed in as ada"
    twice = b'{"run_input": {"your_name": "x"}, "run_input": {"your_name": "grace", "your_name": "grace"}}'
    assert json.loads(named(twice, "ada")) == {"run_input": {"your_name": "signed in as ada"}}
    utf16 = json.dumps({"run_input": ANSWER}).encode("utf-16")
    assert json.loads(named(utf16, "ada"))["run_input"]["your_name"] == "signed in as ada"


def test_without_a_proxy_a_name_is_stated_and_never_vouched_for() -> None:
    assert names_in({"run_input": ANSWER}, "") == "Grace"
    assert names_in({"run_input": {**ANSWER, "your_name": "signed in as ada"}}, "") == "ada"


PUT_TOGETHER = [
    {"__prefect_kind": "json", "value": json.dumps(ANSWER)},
    {**ANSWER, "__prefect_kind": "none", "value": ANSWER},
    {**ANSWER, "reason": {"__prefect_kind": "workspace_variable", "variable_name": "secret"}},
    {**ANSWER, "reason": [{"\u005f_prefect_kind": "jinja", "template": "{{ flow_run }}"}]},
]


def test_an_answer_that_prefect_would_put_together_is_refused_and_so_is_what_is_not_json() -> None:
    refused = [(json.dumps({"run_input": form}).encode(), "plain values only") for form in PUT_TOGETHER]
    for body, words in [*refused, *((body, "not JSON") for body in (b"{", b"\xff", b"[" * 100_000))]:
        with pytest.raises(ValueError, match=words):
            named(body, "ada")
    for body in (b"", b"null", b"{}", b'{"run_input": null}', b"[]"):  # without a form, it stays as it is
        assert named(body, "ada") == body


CREDENTIALS = b"Basic " + base64.b64encode(SETTINGS.auth_string.encode())


def passed_on(path: str, headers: dict[bytes, bytes], body: bytes | None = b"{}") -> tuple[list[bytes], int]:
    """The bodies of requests that reach Prefect, and the status; a request without a body must not be read."""
    bodies, statuses = [], []

    async def receive() -> dict[str, Any]:
        assert body is not None, "the request was read"
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    async def app(_: Any, receive: Any, send: Any) -> None:
        bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers.items())}
    asyncio.run(SignedIn(app, SETTINGS.auth_string)(scope, receive, send))
    return bodies, statuses[0]


RESUME, CHECK = "/api/flow_runs/4fa1b4be/resume", "/api/ui/schemas/validate"


@pytest.mark.parametrize("headers", [{}, {b"authorization": b"Basic dGVhbTp4"}], ids=["none", "wrong"])
def test_the_answer_of_whoever_shows_no_password_is_not_even_read(headers: dict[bytes, bytes]) -> None:
    assert passed_on(RESUME, {**headers, b"x-trainwright-person": b"ada"}, None) == ([], 401)


def test_a_name_is_taken_letter_by_letter() -> None:
    headers = {b"authorization": CREDENTIALS, b"x-trainwright-person": "zoë".encode()}
    (body,), status = passed_on(RESUME, headers, json.dumps({"run_input": ANSWER}).encode())
    assert (json.loads(body)["run_input"]["your_name"], status) == ("signed in as zoë", 200)


def test_only_for_an_operator_prefect_fills_in_values() -> None:
    for role in (b"reviewer", b"Reviewer", b"reader", b""):  # nginx compares roles without case
        assert passed_on(CHECK, {b"x-trainwright-role": role}) == ([], 200), role
    assert passed_on(CHECK, {b"x-trainwright-role": b"operator"}) == passed_on(CHECK, {}) == ([b"{}"], 200)


def test_nginx_asks_only_the_address_that_the_server_listens_on(tmp_path: Path) -> None:
    for host, server in (("localhost", "127.0.0.1:4200"), ("0.0.0.0", "127.0.0.1:4200"), ("::", "[::1]:4200")):
        write_proxy(tmp_path, replace(SETTINGS, host=host))
        assert re.findall(r"^    server (\S+);$", (tmp_path / "proxy.conf").read_text(), re.MULTILINE) == [server]


def test_the_server_s_password_is_in_one_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    (tmp_path / "roles").write_text("ada reviewer;\n")
    write_proxy(tmp_path, SETTINGS)
    password = (tmp_path / "server-password").read_text()
    assert re.fullmatch(r'proxy_set_header Authorization "Basic [A-Za-z0-9=]+";\n', password)
    assert (tmp_path / "server-password").stat().st_mode & 0o777 == 0o600
    assert password.split()[3][:-2] not in (tmp_path / "proxy.conf").read_text()
    assert (tmp_path / "roles").read_text() == "ada reviewer;\n"


@pytest.mark.parametrize(
    "url",
    [None, "http://prefect.example/api", "https://prefect.example", "https://a:b@prefect.example/api",
     "https://prefect.example/api;", "https://prefect.example:1 {}/api"],
)  # fmt: skip
def test_an_address_without_tls_is_refused(tmp_path: Path, url: str | None) -> None:
    with pytest.raises(UsageError, match="PREFECT_SERVER_UI_API_URL is .*, which is not the address"):
        write_proxy(tmp_path, Settings(auth_string="team:x", pages_url=url))


def test_a_folder_whose_name_would_be_more_than_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has a character"):
        write_proxy(tmp_path / "a; b", SETTINGS)
