"""A team's proxy: a real nginx with the configuration that `trainwright server proxy` writes, in front of a server."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.orchestrator.api import ANY_SERVER
from infra.orchestrator.team_server import Settings, write_proxy
from tests.support.browser import chromium
from tests.support.pool import ASKED, api_client, until
from tests.support.proxy import API, PAGES, PEOPLE, SECRET, Notes, may, nginx, role_of, sent
from tests.support.speed.children import import_path
from tests.support.speed.prefect_database import put_new_database
from tests.support.stranger import listen
from tests.support.tiny import trainwright
from tests.support.waiting import free_port

pytestmark = pytest.mark.apt("nginx")

PASSWORD = "team:a-long-enough-password"
SERVE = """
import os, socket
from infra.orchestrator.serve import serve
port = int(os.environ["PREFECT_SERVER_API_PORT"])
listener = socket.create_server(("127.0.0.1", port))
serve(listener, os.environ["PREFECT_SERVER_API_AUTH_STRING"], os.environ["PREFECT_SERVER_UI_API_URL"])
"""


class Proxied:
    """A proxy in front of a server, in a folder that holds the proxy's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.behind = free_port(), free_port()
        self.settings = {
            **ANY_SERVER,
            "PREFECT_HOME": str(folder / "home" / "prefect"),
            "PREFECT_SERVER_API_AUTH_STRING": PASSWORD,
            "PREFECT_SERVER_API_PORT": str(self.behind),
            "PREFECT_SERVER_UI_API_URL": f"https://localhost:{self.port}/api",
        }
        self.url = f"https://localhost:{self.port}"

    def client(self, name: str) -> httpx.Client:
        """A client that signs in as this person."""
        return httpx.Client(
            base_url=self.url, auth=(name, SECRET.format(name)), verify=False, trust_env=False, timeout=60
        )

    def logged(self) -> list[dict[str, Any]]:
        """What the proxy has answered to whom."""
        return [json.loads(line) for line in (self.folder / "access.log").read_text(errors="replace").splitlines()]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxied, Notes]]:
    """A proxy in front of a server that takes notes."""
    proxied = Proxied(tmp_path_factory.mktemp("noted"))
    settings = Settings(port=proxied.behind, auth_string=PASSWORD, pages_url=f"{proxied.url}/api")
    write_proxy(proxied.folder, settings)
    behind = Notes(proxied.behind)
    with nginx(proxied.folder, proxied.port):
        yield proxied, behind
    behind.shutdown()


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory, shared_folder: Path, forked_prefect: None) -> Iterator[Proxied]:
    """A proxy in front of Prefect's server."""
    proxied = Proxied(tmp_path_factory.mktemp("proxied"))
    database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": "postgresql+asyncpg://nobody@127.0.0.1/none"}
    written = trainwright("server", "proxy", proxied.folder, env={**proxied.settings, **database})
    assert written.returncode == 0, written.stderr
    put_new_database(proxied.folder / "home", shared_folder)
    environment = {**os.environ, **proxied.settings, "PYTHONPATH": import_path()}
    with (proxied.folder / "server.txt").open("wb") as output:
        server = subprocess.Popen([*ASKED, SERVE], env=environment, stdout=output, stderr=output)
    try:
        with nginx(proxied.folder, proxied.port):
            with proxied.client("grace") as grace:
                until(
                    lambda: grace.get("/api/health").status_code == 200, what=(proxied.folder / "server.txt").read_text
                )
            yield proxied
    finally:
        server.terminate()
        server.wait(480)


def filled(path: str) -> str:
    return f"/api{path.replace('{', '').replace('}', '')}"


def signed_in(name: str) -> str:
    """The header with which a person's browser signs in."""
    return f"Authorization: Basic {base64.b64encode(f'{name}:{SECRET.format(name)}'.encode()).decode()}"


BESIDE = [
    *(("GET", path) for path in ("/docs", "/openapi.json", "/api/openapi.json", "/api/new", "/trainwright/sign-in")),
    *(("POST", path) for path in ("/trainwright/links", "/trainwright/sign-in", "/api/new", "/", "/flows")),
    *((method, "/api/flows/") for method in ("PURGE", "HEAD", "OPTIONS", "TRACE")),
]


@pytest.mark.parametrize("name", PEOPLE)
def test_each_role_reaches_what_is_listed_for_it_and_nothing_else(notes: tuple[Proxied, Notes], name: str) -> None:
    proxied, behind = notes
    asked = [(least, method, filled(path)) for least, method, path in API if method != "WS"]
    asked += [("reader", "GET", page) for page in PAGES]
    behind.requests.clear()
    with proxied.client(name) as client:
        statuses = [client.request(method, path).status_code for _, method, path in asked]
        beside = {client.request(method, path).status_code for method, path in BESIDE}
    assert statuses == [200 if may(PEOPLE[name], least) else 403 for least, _, _ in asked]
    assert beside <= {400, 403, 405}
    reached = [(method, path) for least, method, path in asked if may(PEOPLE[name], least)]
    assert [(method, path) for method, path, _ in behind.requests] == reached


def test_without_a_password_of_ones_own_nothing_is_reached(notes: tuple[Proxied, Notes]) -> None:
    proxied, behind = notes
    behind.requests.clear()
    asked = ("GET", "/"), ("GET", "/api/health"), ("POST", "/api/flows/filter"), ("GET", "/api/new")
    wrong = ("grace", SECRET.format("ada")), ("stranger", "x"), ("", ""), ("GRACE", SECRET.format("grace"))
    for auth in (None, *wrong, tuple(PASSWORD.split(":"))):
        with httpx.Client(base_url=proxied.url, auth=auth, verify=False, trust_env=False, timeout=60) as client:
            answers = [client.request(method, path) for method, path in asked]
        assert [answer.status_code for answer in answers] == [401] * 4, auth
        assert answers[0].headers["www-authenticate"] == 'Basic realm="Trainwright"'
    assert behind.requests == []


# What a reader may not ask, written so that nginx and Prefect might read it in two ways.
WAYS_ROUND = [
    "//api/block_documents/filter", "/api//block_documents/filter", "/api/block_documents//filter",
    "/api/./block_documents/filter", "/api/flows/../block_documents/filter", "/assets/../api/block_documents/filter",
    "/api/flows/%2e%2e/block_documents/filter", "/api/flows/..%2fblock_documents/filter",
    "/%61pi/block_documents/filter", "/api/block%5fdocuments/filter", "/api/block_documents%2Ffilter",
    "/api/flows%2F..%2Fblock_documents/filter",
    "/api/block_documents/filter/", "/api/block_documents/filter%00", "/api/block_documents/filter%0a",
    "/api/block_documents/filter%3f", "/api/block_documents/filter;/../../flows/filter",
    "/api\\block_documents\\filter", "/API/block_documents/filter", "/api/Block_Documents/filter",
    "/api/block_documents/filter#/api/flows/filter",
    "http://localhost/api/block_documents/filter", "/api/block_documents/filter?x=/api/flows/filter",
    "/api/flow_runs/4fa1b4be-0ed5-4d0b-a4f0-5b2a3e1c0a3f/resume?a=/filter", "/trainwright/../api/variables/filter",
    "/api/flow_runs/filter%2f..%2f4fa1b4be-0ed5-4d0b-a4f0-5b2a3e1c0a3f%2fresume", "/api/flows/\xc0\xaf..", "*",
]  # fmt: skip
HEADERS = [
    "X-Trainwright-Person: linus", "x-trainwright-person: linus\r\nX-Trainwright-Person: linus",
    "X_Trainwright_Person: linus", "Connection: X-Trainwright-Person, Authorization", "X-HTTP-Method-Override: DELETE",
    "X-Original-URL: /api/variables/filter", "X-Rewrite-URL: /api/variables/filter", "Host: 127.0.0.1", "Upgrade: h2c",
    "X-Forwarded-Proto: http\r\nX-Forwarded-For: 127.0.0.1", "Transfer-Encoding: chunked\r\nContent-Length: 5",
    "Transfer-Encoding: x\r\nContent-Length: 5", "Content-Length: 5\r\nContent-Length: 0",
    "Transfer-Encoding : chunked",
    "Content-Length: 0\r\nX: y\n\nPOST /api/variables/filter HTTP/1.1\r\nHost: localhost",
]  # fmt: skip


def test_no_way_of_writing_a_request_leads_a_reader_past_the_list(notes: tuple[Proxied, Notes]) -> None:
    proxied, behind = notes
    behind.requests.clear()
    grace, end = f"Host: localhost\r\n{signed_in('grace')}\r\n", "Connection: close\r\n\r\n"
    ways = [(method, path) for path in WAYS_ROUND for method in ("POST HTTP/1.1", "GET HTTP/1.0")]
    asked = [f"{way.split()[0]} {path} {way.split()[1]}\r\n{grace}{end}" for way, path in ways]
    statuses = {status for request in asked for status in sent(proxied.port, request.encode("latin-1"))}
    assert statuses <= {400, 403, 405}, statuses
    smuggled = "0\r\n\r\nPOST /api/variables/filter HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for header in HEADERS:
        sent(proxied.port, f"POST /api/flows/filter HTTP/1.1\r\n{grace}{header}\r\n{end}{smuggled}".encode())
    second = f"GET /api/health HTTP/1.1\r\n{grace}\r\nPOST /api/variables/filter HTTP/1.1\r\nHost: localhost\r\n{end}"
    assert sent(proxied.port, second.encode()) == [200, 401]
    for upgrade in ("websocket", "WebSocket"):
        asked = f"GET /api/flows/x HTTP/1.1\r\n{grace}Upgrade: {upgrade}\r\n{end}"
        assert sent(proxied.port, asked.encode()) == [403]

    credentials = base64.b64encode(PASSWORD.encode()).decode()
    for method, path, headers in behind.requests:
        assert role_of(f"{method} {path.partition('?')[0]}") == "reader", (method, path)
        assert ".." not in path.partition("?")[0]
        kept = [(key.lower(), value) for key, value in headers]
        assert [value for key, value in kept if key == "x-trainwright-person"] == ["grace"], headers
        assert [value for key, value in kept if key == "authorization"] == [f"Basic {credentials}"], headers
        assert [value for key, value in kept if key == "host"] == [f"localhost:{proxied.port}"], headers
        assert [key for key, _ in kept if key == "upgrade"] == []
    assert len(behind.requests) > 5


def test_the_log_of_access_has_the_name_and_no_password(notes: tuple[Proxied, Notes]) -> None:
    proxied, _ = notes
    with proxied.client("ada") as client:
        client.post("/api/flow_runs/4fa1b4be/resume?why=\"'")
        client.delete("/api/flow_runs/4fa1b4be")
    until(lambda: proxied.logged()[-1]["method"] == "DELETE")  # it is written once the client has its answer
    before, last = proxied.logged()[-2:]
    assert {key: last[key] for key in ("person", "role", "method", "path", "status")} == {
        "person": "ada", "role": "reviewer", "method": "DELETE", "path": "/api/flow_runs/4fa1b4be", "status": 403,
    }  # fmt: skip
    assert (before["person"], before["status"]) == ("ada", 200)
    assert (last["stated"], before["stated"]) == ("ada", "ada")
    texts = [file.read_text(errors="replace") for kind in ("*.log", "*.txt") for file in proxied.folder.glob(kind)]
    secrets = [*(SECRET.format(name) for name in PEOPLE), *(signed_in(name).split()[-1] for name in PEOPLE), PASSWORD]
    assert [secret for text in texts for secret in secrets if secret in text] == []


def test_the_log_names_nobody_who_has_not_shown_a_password(notes: tuple[Proxied, Notes]) -> None:
    proxied, _ = notes
    lied = f"Authorization: Basic {base64.b64encode(b'linus:not the password').decode()}\r\n"
    # All of these are refused; nginx refuses most of them before it asks for a password.
    asked = {
        400: ("DELETE /api/flows/lied", ""),
        401: ("DELETE /api/flows/lied", "Host: localhost\r\n"),
        404: ("GET /trainwright-allowed?lied", "Host: localhost\r\n"),
        405: ("TRACE /api/flows/lied", "Host: localhost\r\n"),
        413: ("POST /api/flows/lied", "Host: localhost\r\nContent-Length: 99999999\r\n"),
        501: ("DELETE /api/flows/lied", "Host: localhost\r\nTransfer-Encoding: x\r\n"),
    }
    for status, (line, headers) in asked.items():
        request = f"{line} HTTP/1.1\r\n{headers}{lied}Connection: close\r\n\r\n"
        assert sent(proxied.port, request.encode()) == [status]
    until(lambda: sum("lied" in line["path"] for line in proxied.logged()) == len(asked))
    logged = [line for line in proxied.logged() if "lied" in line["path"]]
    assert {(line["person"], line["role"], line["stated"]) for line in logged} == {("", "", "linus")}
    assert {line["status"] for line in logged} == set(asked)


def test_a_page_from_elsewhere_does_not_borrow_a_persons_password(notes: tuple[Proxied, Notes]) -> None:
    proxied, _ = notes

    def status(origin: str, method: str = "POST", path: str = "/api/flows/") -> int:
        with proxied.client("linus") as linus:
            return linus.request(method, path, headers={"Origin": origin}).status_code

    assert status(proxied.url) == status(proxied.url, "GET", "/") == 200
    # The server behind the proxy answers to names of loopback, which on a person's own machine are another server.
    elsewhere = [
        f"http://localhost:{proxied.behind}",
        f"https://127.0.0.1:{proxied.behind}",
        "null",
        "http://localhost",
    ]
    assert {status(origin) for origin in (*elsewhere, "https://pages.example.com")} == {403}


FORM = {
    "title": "Approval", "type": "object", "additionalProperties": False,
    "required": ["decision", "reason", "your_name"],
    "properties": {
        "decision": {"title": "Decision", "type": "string", "enum": ["approve", "refuse"]},
        "reason": {"title": "Reason", "type": "string", "minLength": 1},
        "your_name": {"title": "Your Name", "type": "string", "minLength": 1},
    },
}  # fmt: skip
ANSWER = {"decision": "approve", "reason": "recall is what we need", "your_name": "Linus"}
KEYS = {"schema": "asked-schema", "response": "asked-response", "description": "asked-description"}


@pytest.fixture(scope="module")
def server(prefect: Proxied) -> Iterator[httpx.Client]:
    """A client with the server's own password, at its own address."""
    with api_client(f"http://127.0.0.1:{prefect.behind}/api", PASSWORD) as api:
        yield api


def posted(server: httpx.Client, path: str, body: object) -> Any:
    """What the server answers; a busy one that says "come again" (503) is asked again, as Prefect's own client does."""
    answers: list[httpx.Response] = []

    def answered() -> bool:
        answers.append(server.post(path, json=body))
        return answers[-1].status_code != 503

    until(answered)
    answer = answers[-1].raise_for_status()
    return answer.json() if answer.content else None


def suspended(server: httpx.Client, name: str) -> str:
    """A new flow run that waits for a person's answer; its id."""
    flow = posted(server, "/flows/", {"name": "retrain"})
    made = posted(server, "/deployments/", {"name": "waits", "flow_id": flow["id"]})
    run = posted(server, f"/deployments/{made['id']}/create_flow_run", {"name": name})["id"]
    for key, value in (("schema", json.dumps(FORM)), ("description", json.dumps("May it?"))):
        posted(server, f"/flow_runs/{run}/input", {"key": KEYS[key], "value": value})
    details = {"pause_reschedule": True, "run_input_keyset": KEYS, "pause_timeout": "2099-01-01T00:00:00Z"}
    state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
    posted(server, f"/flow_runs/{run}/set_state", {"state": state, "force": True})
    return str(run)


def answer_to(server: httpx.Client, run: str) -> Any:
    """What was answered, as the server keeps it; None if nothing was."""
    found = server.get(f"/flow_runs/{run}/input/{KEYS['response']}")
    return None if found.status_code == 404 else found.raise_for_status().json()


def test_an_answer_has_the_name_of_the_reviewer_who_signed_in(prefect: Proxied, server: httpx.Client) -> None:
    run = suspended(server, "named")
    secret = {"__prefect_kind": "workspace_variable", "variable_name": "secret"}
    server.post("/variables/", json={"name": "secret", "value": "a-value-of-a-variable"}).raise_for_status()
    forged = {"__prefect_kind": "json", "value": json.dumps({**ANSWER, "your_name": "signed in as linus"})}
    with prefect.client("ada") as ada, prefect.client("grace") as grace:
        here = f"/api/flow_runs/{run}"
        assert grace.post(f"{here}/resume", json={"run_input": ANSWER}).status_code == 403
        assert ada.post(f"{here}/resume", json={"run_input": forged}).status_code == 422
        asked = {"schema": {"type": "object", "properties": {"x": {"const": 1}}}, "values": {"x": secret}}
        for client in (ada, grace):
            assert "a-value-of-a-variable" not in client.post("/api/ui/schemas/validate", json=asked).text
        for path, body in (("input", {"key": KEYS["response"], "value": json.dumps(ANSWER)}), ("set_state", {})):
            assert ada.post(f"{here}/{path}", json=body).status_code == 403
        assert answer_to(server, run) is None
        lied = {"X-Trainwright-Person": "linus"}
        given = ada.post(f"{here}/resume", json={"run_input": ANSWER}, headers=lied)
    assert given.json()["status"] == "ACCEPT", given.text
    assert answer_to(server, run) == {**ANSWER, "your_name": "signed in as ada"}


def test_no_path_of_a_reader_or_reviewer_shows_variables_blocks_or_automations(
    prefect: Proxied, server: httpx.Client
) -> None:
    secret = "what-only-operators-read"
    kind = server.post("/block_types/", json={"name": "Address", "slug": "address"}).raise_for_status().json()["id"]
    form = {"type": "object", "properties": {"url": {"type": "string"}}}
    made = server.post("/block_schemas/", json={"block_type_id": kind, "fields": form}).raise_for_status().json()
    actions = [{"type": "run-deployment", "source": "inferred", "parameters": {"x": secret}}]
    trigger = {"type": "event", "expect": ["never"], "posture": "Reactive", "threshold": 1, "within": 0}
    for path, body in {
        "/variables/": {"name": "hidden", "value": secret},
        "/block_documents/": {
            "name": "hidden", "data": {"url": secret}, "block_schema_id": made["id"], "block_type_id": kind,
        },
        "/automations/": {"name": "hidden", "trigger": trigger, "actions": actions},
    }.items():  # fmt: skip
        server.post(path, json=body).raise_for_status()
    # Prefect's events repeat all of them.
    until(lambda: server.post("/events/filter", json={}).text.count(secret) >= 3)
    day = {"history_start": "2026-01-01T00:00:00Z", "history_end": "2099-01-01T00:00:00Z"}
    body = {"filter": {}, **day, "history_interval_seconds": 86_400 * 365}
    for name in ("grace", "ada"):
        with prefect.client(name) as client:
            paths = [(method, filled(path)) for role, method, path in API if role != "operator" and method != "WS"]
            shown = [path for method, path in paths if secret in client.request(method, path, json=body).text]
            assert shown == []


def test_what_passes_the_proxy_is_not_changed(prefect: Proxied, server: httpx.Client) -> None:
    flow = server.post("/flows/", json={"name": "unchanged"}).raise_for_status().json()["id"]
    body = {"name": "unchanged", "flow_id": flow, "parameters": {"auth": "BASIC"}}
    made = server.post("/deployments/", json=body).raise_for_status().json()
    with prefect.client("linus") as linus:
        assert linus.get(f"/api/deployments/{made['id']}").json()["parameters"] == {"auth": "BASIC"}
        assert linus.get("/ui-settings").json()["auth"] is None


def test_nobody_is_given_the_server_s_password(prefect: Proxied) -> None:
    with prefect.client("linus") as linus:
        assert PASSWORD.partition(":")[2] not in linus.get("/api/admin/settings").raise_for_status().text


def test_a_subscriber_signs_in_at_the_proxy(prefect: Proxied) -> None:
    def told(path: str, name: str | None) -> str:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        headers = dict([signed_in(name).split(": ")]) if name else {}
        url = f"wss://localhost:{prefect.port}/api{path}"
        return listen(url, token="x", subprotocol=True, additional_headers=headers, ssl=trusting)

    assert told("/logs/out", "grace") == told("/logs/out", "ada") == told("/events/in", "linus") == "open"
    assert told("/events/out", "linus") == "open"
    assert "HTTP 403" in told("/events/in", "ada")
    assert "HTTP 403" in told("/events/out", "ada")
    assert "HTTP 401" in told("/logs/out", None)


FILL_IN = """(() => {
  const form = document.querySelector('.p-modal'), write = (field, value, kind) => {
    Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), 'value').set.call(field, value)
    field.dispatchEvent(new Event(kind, {bubbles: true}))
  }
  const choice = form.querySelector('select'), [reason, name] = form.querySelectorAll('textarea')
  write(choice, [...choice.options].find(option => option.text.trim() == 'approve').value, 'change')
  write(reason, 'recall is what we need', 'input')
  write(name, 'Linus', 'input')
})()"""
BUTTONS = """
var button = (text, where) => [...where.querySelectorAll('button')].find(one => one.innerText.trim() == text)
var press = (text, where) => button(text, where).click()
var post = (path, body) => {
  const request = new XMLHttpRequest()
  request.open('POST', path, false)
  request.setRequestHeader('Content-Type', 'application/json')
  request.send(JSON.stringify(body))
  return request.status
}
"""


@pytest.mark.apt("chromium")
@pytest.mark.parametrize("name", ["grace", "ada", "linus"])
def test_a_browser_shows_each_role_what_it_may_see_and_do(
    prefect: Proxied, server: httpx.Client, name: str, tmp_path: Path
) -> None:
    run, shown = suspended(server, f"seen-by-{name}"), f"document.body?.innerText.includes('seen-by-{name}')"
    with chromium(tmp_path / "profile", "--ignore-certificate-errors") as browser:
        person = f"{name}:{SECRET.format(name).replace(' ', '%20')}"
        browser.visit(f"https://{person}@localhost:{prefect.port}/runs/flow-run/{run}", "document.title")
        browser.visit(f"{prefect.url}/runs/flow-run/{run}", shown)
        browser.run(BUTTONS)
        browser.wait("button('Resume', document)")
        browser.run("press('Resume', document)")
        browser.wait("document.body.innerText.includes('Your Name')")
        browser.run(FILL_IN)

        def submitted() -> Any:
            """What the server has after a click; the page takes values some time after they are typed."""
            browser.run("button('Submit', document)?.click()")
            return answer_to(server, run)

        if may(PEOPLE[name], "reviewer"):
            until(submitted)
            assert answer_to(server, run) == {**ANSWER, "your_name": f"signed in as {name}"}
        else:
            refused = "document.body.innerText.includes('Something went wrong')"
            until(lambda: submitted() is None and browser.run(refused))
            assert answer_to(server, run) is None
        cancelled = {"state": {"type": "CANCELLING"}}
        asked = ("flow_runs/filter", {}), ("variables/filter", {}), (f"flow_runs/{run}/set_state", cancelled)
        did = [browser.run(f"post('/api/{path}', {json.dumps(body)})") for path, body in asked]
    assert did == ([200, 200, 201] if name == "linus" else [200, 403, 403])
