"""Access to our Prefect server: refused to other users and to pages from elsewhere, given to the person by a link.

(What the page does by HTTP, and how long a token lives: tests/unit/infra/orchestrator/test_sign_in.py.)
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.browser import Browser, chromium
from tests.support.pool import api_client, password_in
from tests.support.stranger import NOBODY, SOCKETS, listen
from tests.support.tiny import answer, trainwright

# The health checks, which need no password.
OPEN = {"GET /api/health", "GET /api/ready"}
PRIVATE = (
    "password", "profiles.toml", "server.json", "server.log", "worker.json", "worker.log",
    "prefect/prefect.db", "prefect/prefect.db-wal", "prefect/memo_store.toml",
)  # fmt: skip


@dataclass
class Served:
    """A server and a worker of a state folder that other users could enter, if they were let."""

    home: Path
    url: str
    password: str

    def pids(self) -> list[str]:
        return [str(json.loads((self.home / f"{name}.json").read_text())["pid"]) for name in ("server", "worker")]

    def link(self) -> str:
        return str(answer(trainwright("ui", "--json", env={"TRAINWRIGHT_HOME": str(self.home)}))["link"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # Not below pytest's own folder, which keeps others out by itself; with the umask that most machines have.
    place = Path(tempfile.mkdtemp(prefix="trainwright-tests-"))
    place.chmod(0o755)
    own = {"TRAINWRIGHT_HOME": str(place / "home")}
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    before = os.umask(0o022)
    try:
        up = answer(trainwright("up", "--json", cwd=elsewhere, env=own))
        yield Served(place / "home", up["ui"], password_in(place / "home"))
    finally:
        os.umask(before)
        trainwright("down", cwd=elsewhere, env=own)
        shutil.rmtree(place)


@pytest.fixture(scope="module")
def stranger(served: Served, repository: Path) -> dict[str, Any]:
    """What another user of this machine gets from all attempts."""
    command = [sys.executable, "-m", "tests.support.stranger", served.url, *served.pids()]
    files = json.dumps([str(served.home / name) for name in PRIVATE])
    done = subprocess.run(command, cwd=repository, input=files, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["uid"] == NOBODY
    return found


@pytest.mark.root
def test_another_user_reads_neither_files_nor_environments(served: Served, stranger: dict[str, Any]) -> None:
    assert all((served.home / name).is_file() for name in PRIVATE)
    assert set(stranger["files"].values()) == {"PermissionError"}, stranger["files"]
    assert set(stranger["environments"]) == {"PermissionError"}


@pytest.mark.root
def test_another_user_finds_no_password_in_the_list_of_processes(served: Served, stranger: dict[str, Any]) -> None:
    assert "infra.orchestrator.serve" in stranger["arguments"]
    assert "worker" in stranger["arguments"]
    for spelt in (served.password, base64.b64encode(served.password.encode()).decode()):
        assert spelt not in stranger["arguments"]


@pytest.mark.root
def test_another_user_gets_no_answer_from_any_part_of_the_api(served: Served, stranger: dict[str, Any]) -> None:
    statuses = {asked: status for asked, status in stranger["requests"].items() if asked not in OPEN}
    assert len(statuses) > 150
    assert "POST /api/deployments/id/create_flow_run" in statuses
    assert set(statuses.values()) == {401}, {asked: s for asked, s in statuses.items() if s != 401}
    assert (stranger["links"], stranger["sign_in"]) == (401, 403)
    with api_client(f"{served.url}/api", served.password) as api:
        assert api.get("/admin/version").status_code == 200


@pytest.mark.root
def test_another_user_subscribes_to_nothing(served: Served, stranger: dict[str, Any]) -> None:
    assert len(stranger["sockets"]) == 4 * len(SOCKETS)
    assert not {asked: said for asked, said in stranger["sockets"].items() if said.startswith(("open", "said"))}
    for path in SOCKETS:
        told = listen(f"ws://{urlsplit(served.url).netloc}{path}", token=served.password, subprotocol=True)
        assert told == "open", (path, told)


def test_a_name_that_was_made_to_resolve_here_is_refused_though_the_password_is_right(served: Served) -> None:
    port = urlsplit(served.url).port
    with api_client(f"{served.url}/api", served.password) as api:
        for host in ("rebound.example", f"rebound.example:{port}", "127.0.0.1", f"127.0.0.1:{port}.rebound.example"):
            assert api.get("/admin/version", headers={"Host": host}).status_code == 421
            told = listen(
                f"ws://127.0.0.1:{port}{SOCKETS[1]}",
                token=served.password,
                subprotocol=True,
                additional_headers={"Host": host},
            )
            assert told.startswith("refused"), told


def test_a_page_from_elsewhere_makes_nothing_though_its_request_looks_simple(served: Served) -> None:
    port = urlsplit(served.url).port
    with api_client(f"{served.url}/api", served.password) as api:
        asked = {"Origin": "http://pages.example.com"}
        made = api.post("/flows/", content=b'{"name": "from-elsewhere"}', headers=asked)
        assert made.status_code == 403
        found = api.post("/flows/filter", json={"flows": {"name": {"any_": ["from-elsewhere"]}}})
        assert found.raise_for_status().json() == []
    told = listen(
        f"ws://127.0.0.1:{port}{SOCKETS[0]}",
        token=served.password,
        subprotocol=True,
        additional_headers={"Origin": "http://pages.example.com"},
    )
    assert told.startswith("refused"), told


def test_a_link_gives_the_credentials_once(served: Served) -> None:
    page, _, token = served.link().partition("#")
    given = [httpx.post(page, json={"token": token}, trust_env=False, timeout=60) for _ in range(2)]
    assert [one.status_code for one in given] == [200, 403]
    credentials = given[0].json()["credentials"]
    assert base64.b64decode(credentials).decode() == served.password
    assert served.password not in served.link()


def browse(profile: Path, address: str) -> str:
    """What a browser shows in the end."""
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options = [f"--user-data-dir={profile}", "--virtual-time-budget=60000", "--dump-dom", address]
    done = subprocess.run([*browser, *options], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.apt("chromium")
def test_a_browser_that_opens_the_link_is_signed_in_and_stays_so(served: Served, tmp_path: Path) -> None:
    link = served.link()
    assert "Logout" in browse(tmp_path / "first", link)
    assert "Logout" in browse(tmp_path / "first", link), "an old link in a browser that is signed in leads on"
    assert "Logout" in browse(tmp_path / "first", served.url)
    assert "This link no longer signs you in" in browse(tmp_path / "second", link)
    assert "Logout" not in browse(tmp_path / "second", served.url)


@pytest.mark.apt("chromium")
def test_a_first_visit_says_what_to_paste_and_then_shows_the_page_that_was_asked_for(
    served: Served, tmp_path: Path
) -> None:
    said = "(document.body?.innerText ?? '')"
    with chromium(tmp_path) as browser:
        for place in ("", "/deployments"):
            browser.visit(f"{served.url}{place}", f"{said}.includes('the whole line with the name before the colon')")
            text = browser.run(said)
            assert "trainwright ui" in text
            assert "Authentication failed" not in text
            assert "Oops" not in text
        paste(browser, served.password.partition(":")[2])
        browser.wait(f"{said}.includes('The server does not take this')")
        paste(browser, f" {served.password}\n")
        deployments = f"location.pathname === '/deployments' && {said}.includes('Items per page')"
        browser.wait(deployments)
        browser.run("document.cookie = 'trainwright-checked=; path=/; max-age=0'")
        browser.visit("about:blank", "true")
        browser.visit(f"{served.url}/deployments", deployments)
        assert not [url for url in browser.requested if served.password in url]


def paste(browser: Browser, text: str) -> None:
    """Put a text into the page's field, and press its button."""
    browser.run(f"document.querySelector('input').value = {json.dumps(text)}; document.querySelector('button').click()")


def test_a_server_that_a_person_names_gives_a_link_too_or_the_command_says_what_to_paste(
    served: Served, tmp_path: Path
) -> None:
    named = {"TRAINWRIGHT_HOME": str(tmp_path), "PREFECT_API_URL": f"{served.url}/api"}
    named |= {"PREFECT_API_AUTH_STRING": served.password}
    page, _, token = answer(trainwright("ui", "--json", env=named))["link"].partition("#")
    given = httpx.post(page, json={"token": token}, trust_env=False, timeout=60).raise_for_status().json()
    assert base64.b64decode(given["credentials"]).decode() == served.password
    elsewhere = trainwright("ui", env={**named, "PREFECT_UI_URL": "https://prefect.example"})
    assert elsewhere.stdout.strip() == "https://prefect.example"
    assert "paste the whole line `name:password` that PREFECT_API_AUTH_STRING has here" in elsewhere.stderr
    assert served.password not in elsewhere.stdout + elsewhere.stderr


def test_without_a_server_there_is_no_link(tmp_path: Path) -> None:
    done = trainwright("ui", "--json", env={"TRAINWRIGHT_HOME": str(tmp_path)})
    assert (done.returncode, json.loads(done.stdout)["error"]["cause"]) == (5, "storage")
    assert "trainwright up" in done.stdout
