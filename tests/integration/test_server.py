"""Our Prefect server, started for real: one per state folder, never a stranger's, and nothing left of it afterwards."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.processes.processes import find_marked, is_alive, kill_marked
from tests.support.pool import ASKED, api_client, password_in
from tests.support.processes import a_process
from tests.support.speed.children import import_path
from tests.support.stub_server import serving
from tests.support.tiny import trainwright

pytestmark = pytest.mark.usefixtures("forked_prefect")

ENSURE = """
import dataclasses, json
from data_contracts.errors import TrainwrightError
from infra.orchestrator import server
from infra.orchestrator.server import ensure_server
server.FIRST_PORT = 4400  # another test's server would take the port of one that was killed
try:
    print(json.dumps(dataclasses.asdict(ensure_server())))
except TrainwrightError as error:
    print(json.dumps(error.to_json()))
"""
STATUS = "import json; from infra.orchestrator.server import server_status as s; print(json.dumps(s() and s().url))"
STOP = "import json; from infra.orchestrator.server import stop_server; print(json.dumps(stop_server()))"


class Place:
    """A state folder, asked from processes of their own, as commands are."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**os.environ, "TRAINWRIGHT_HOME": str(home), "PYTHONPATH": import_path()}

    def begin(self, code: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*ASKED, code], env=self.env, stdout=subprocess.PIPE, text=True)

    def ask(self, code: str) -> Any:
        answer, _ = self.begin(code).communicate()
        return json.loads(answer.splitlines()[-1])

    def password(self) -> str:
        return password_in(self.home)

    def state(self, service: str = "server") -> dict[str, Any]:
        return json.loads((self.home / f"{service}.json").read_text())

    def forget(self, **fields: Any) -> None:
        (self.home / "server.json").write_text(json.dumps({**self.state(), **fields}))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One state folder for all tests here, because a new database takes longest; each test starts what it needs."""
    place = Place(tmp_path_factory.mktemp("state") / "home")
    yield place
    place.ask(STOP)


def healthy(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
        return bool(answer.status == 200)


def test_two_starts_at_once_give_one_server_and_a_third_finds_it(place: Place) -> None:
    both = [place.begin(ENSURE) for _ in range(2)]
    first, second = (json.loads(process.communicate()[0]) for process in both)
    assert sorted([first["started"], second["started"]]) == [False, True]
    assert first["url"] == second["url"] == place.state()["url"]
    assert healthy(first["url"])
    pid = place.state()["pid"]
    third = place.ask(ENSURE)
    assert (third["started"], third["ours"], third["url"]) == (False, True, first["url"])
    assert place.state()["pid"] == pid
    assert place.ask(STATUS) == first["url"]


def test_a_server_that_was_killed_is_replaced_on_the_same_port(place: Place) -> None:
    before = place.ask(ENSURE)
    pid = place.state()["pid"]
    os.kill(pid, signal.SIGKILL)
    while is_alive(pid):
        time.sleep(0.01)
    assert place.ask(STATUS) is None
    assert failed(place) == (5, ["server_away"])
    after = place.ask(ENSURE)
    assert (after["started"], after["url"]) == (True, before["url"])
    assert place.state()["pid"] != pid
    assert healthy(after["url"])


def failed(place: Place) -> tuple[int, list[str]]:
    """`doctor`'s exit code, and the problems that it names."""
    done = trainwright("doctor", "--json", env=place.env)
    return done.returncode, [one["problem"] for one in json.loads(done.stdout)["checks"] if not one["ok"]]


def test_a_stranger_with_the_pid_and_on_the_port_is_neither_used_nor_killed(place: Place) -> None:
    place.ask(ENSURE)
    place.ask(STOP)
    # The stranger says of its health what a Prefect server says.
    with a_process() as sleeper, serving(lambda asked: (200, True)) as (address, _):
        theirs = f"{address}/api"
        place.forget(pid=sleeper.pid, url=theirs)
        assert healthy(theirs)
        assert place.ask(STATUS) is None
        assert place.ask(STOP) is None
        ours = place.ask(ENSURE)
        assert ours["started"]
        assert ours["url"] != theirs
        assert place.state()["pid"] != sleeper.pid
        assert is_alive(sleeper.pid)


def test_many_clients_at_once_wait_for_each_other(place: Place) -> None:
    url = place.ask(ENSURE)["url"]
    answers: Counter[int] = Counter()
    with api_client(url, place.password()) as api:
        pool = api.post("/work_pools/", json={"name": "busy", "type": "process"}).raise_for_status().json()
        flow = api.post("/flows/", json={"name": "busy"}).raise_for_status().json()
        deployment = {"name": "busy", "flow_id": flow["id"], "work_pool_name": pool["name"]}
        made = api.post("/deployments/", json=deployment).raise_for_status().json()

    def start_runs(client: int) -> None:
        with api_client(url, place.password(), timeout_s=120) as api:
            for number in range(5):
                asked = {"idempotency_key": f"{client}-{number}"}
                answers[api.post(f"/deployments/{made['id']}/create_flow_run", json=asked).status_code] += 1
                answers[api.post("/work_pools/busy/workers/heartbeat", json={"name": f"w{client}"}).status_code] += 1

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(start_runs, range(8)))
    assert answers == {201: 40, 204: 40}, "none is told that the database is locked"


def test_more_clients_than_connections_are_told_to_come_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.ask(STOP)
    monkeypatch.setitem(place.env, "PREFECT_SERVER_DATABASE_SQLALCHEMY_POOL_TIMEOUT", "1")
    url = place.ask(ENSURE)["url"]
    # Fifteen wait for whoever writes to the database, and the others for a connection.
    writer = sqlite3.connect(place.home / "prefect/prefect.db", isolation_level=None, timeout=60)
    writer.execute("BEGIN IMMEDIATE")

    def make_flow(number: int) -> int:
        with api_client(url, place.password(), timeout_s=120) as api:
            return api.post("/flows/", json={"name": f"crowd-{number}"}).status_code

    with ThreadPoolExecutor(25) as clients:
        answers = [clients.submit(make_flow, number) for number in range(25)]
        wait(answers, return_when=FIRST_COMPLETED)
        writer.execute("ROLLBACK")
    assert {answer.result() for answer in answers} == {201, 503}
    writer.close()


def test_stopping_leaves_no_process_and_frees_the_port(place: Place) -> None:
    url = place.ask(ENSURE)["url"]
    mark = place.state()["mark"]
    assert find_marked(mark)
    assert place.ask(STOP) == url
    assert find_marked(mark) == []
    assert place.ask(STATUS) is None
    assert place.ask(STOP) is None


def test_ctrl_c_while_it_starts_leaves_no_process(place: Place) -> None:
    place.ask(STOP)
    before = place.state()["mark"] if (place.home / "server.json").exists() else ""
    # However late the signal is, it comes while the start waits for the server.
    starting = place.begin(f"from infra.orchestrator import server\nserver._answers = lambda url: False\n{ENSURE}")
    while not (place.home / "server.json").exists() or place.state()["mark"] == before:
        assert starting.poll() is None
        time.sleep(0.01)
    mark = place.state()["mark"]
    starting.send_signal(signal.SIGINT)
    starting.communicate()
    left = find_marked(mark)
    kill_marked(mark)
    assert left == []


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    place = Place(tmp_path / "home")
    (place.home / "prefect").mkdir(parents=True)
    (place.home / "prefect" / "prefect.db").write_bytes(b"no database at all, but a text " * 200)
    answer = place.ask(ENSURE)
    assert answer["cause"] == "storage"
    assert answer["message"].startswith("The local Prefect server ended while starting: ")
    assert str(place.home / "server.log") in answer["remedy"]
    assert find_marked(place.state()["mark"]) == []


def test_a_web_page_from_elsewhere_may_not_talk_to_it(place: Place) -> None:
    url = place.ask(ENSURE)["url"]
    allowed = {}
    for origin in (url.removesuffix("/api"), "http://pages.example.com"):
        asked = urllib.request.Request(f"{url}/health", headers={"Origin": origin})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            allowed[origin] = answer.headers.get("Access-Control-Allow-Origin")
    assert list(allowed.values()) == [url.removesuffix("/api"), None]


def test_who_does_not_know_the_password_is_refused(place: Place) -> None:
    url = place.ask(ENSURE)["url"]
    for password, status in ((place.password(), 200), (f"{place.password()}x", 401), ("", 401)):
        with api_client(url, password) as api:
            assert api.get("/admin/version").status_code == status
    elsewhere = Place(place.home.parent / "elsewhere")
    elsewhere.env |= {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": "not:this"}
    answer = elsewhere.ask(ENSURE)
    assert answer["cause"] == "usage"
    assert "refuses the credentials (401)" in answer["message"]


def test_it_listens_on_this_machine_alone_and_keeps_its_data_in_the_state_folder(place: Place) -> None:
    place.ask(ENSURE)
    sockets = psutil.Process(place.state()["pid"]).net_connections()
    assert {entry.laddr.ip for entry in sockets if entry.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
    assert (place.home / "prefect" / "prefect.db").stat().st_size > 0


PAGES = """
import json
from infra.orchestrator.server import ensure_server
ensure_server()
from prefect import flow, get_client, task
from infra.orchestrator.artifacts import stage_artifact
@task(name="train")
def train():
    stage_artifact("pages-train", "# reused", "train")
@flow(name="pages")
def pages():
    train()
    stage_artifact("pages-report", "# unchanged", "report")
pages()
stage_artifact("pages-outside", "# ran", "outside")
with get_client(sync_client=True) as client:
    found = {page.key: page for page in client.read_artifacts() if page.key.startswith("pages-")}
runs = lambda page: [page.task_run_id is not None, page.flow_run_id is not None]
print(json.dumps({key: [page.type, page.data, page.description, *runs(page)] for key, page in found.items()}))
"""


def test_a_page_is_tied_to_the_run_it_was_left_in(place: Place) -> None:
    assert place.ask(PAGES) == {
        "pages-train": ["markdown", "# reused", "train", True, True],
        "pages-report": ["markdown", "# unchanged", "report", False, True],
        "pages-outside": ["markdown", "# ran", "outside", False, False],
    }


UP = (
    "import dataclasses, json; from infra.orchestrator.lifecycle import up; print(json.dumps(dataclasses.asdict(up())))"
)
DOWN = "import json; from infra.orchestrator.lifecycle import down; print(json.dumps(down()))"


def test_a_server_that_the_person_named_gets_our_pool_and_worker_and_is_left_running(
    place: Place, tmp_path: Path
) -> None:
    url = place.ask(ENSURE)["url"]
    elsewhere = Place(tmp_path / "home")
    elsewhere.env |= {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": place.password()}
    try:
        server = elsewhere.ask(UP)
        assert (server["url"], server["started"], server["ours"]) == (url, False, False)
        assert not (elsewhere.home / "server.json").exists()
        assert elsewhere.ask(STATUS) == url
        mark = json.loads((elsewhere.home / "worker.json").read_text())["mark"]
        assert find_marked(mark)
    finally:
        stopped = elsewhere.ask(DOWN)
    # The worker may be at a run of the reaper, which is due every few minutes; the server is not stopped.
    assert [name for name in stopped if not name.startswith("flow run ")] == ["worker"]
    assert find_marked(mark) == []
    assert healthy(url)
    elsewhere.env["PREFECT_API_URL"] = url.replace("/api", "0/api")
    assert elsewhere.ask(STATUS) is None


OTHER_POOL = """
import json
from infra.orchestrator.server import ensure_server
ensure_server()
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from data_contracts.errors import UsageError
from infra.orchestrator.worker import ensure_pool
with get_client(sync_client=True) as client:
    client.create_work_pool(WorkPoolCreate(name="cluster", type="kubernetes"))
try:
    ensure_pool("cluster")
except UsageError as error:
    print(json.dumps(str(error)))
"""


def test_a_pool_of_that_name_that_runs_something_else_is_refused(place: Place) -> None:
    assert "The work pool cluster on this Prefect server is of type kubernetes, not process." in place.ask(OTHER_POOL)
