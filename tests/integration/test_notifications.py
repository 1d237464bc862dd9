"""On a real server with a real receiver: each cause of a run is one message, and `deploy` keeps the automations."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.gang.ledger import committed
from infra.processes.processes import kill_marked
from infra.store import Store, layout, open_store
from tests.support.pool import ASKED, FINAL, Site, site_with, until
from tests.support.receiver import Receiver, block, receiving
from tests.support.tiny import SPEC, answer, slowed, trainwright, write_project, write_rows

pytestmark = pytest.mark.usefixtures("forked_prefect")

# What processes announce. A server takes the same event once, also from another test.
EMIT = """
import json, sys
from data_contracts.errors import ApprovalPending, OutOfMemory
from data_contracts.records import ColumnDrift, DriftReport
from data_contracts.run_report import RunReport, StageResult
from infra.orchestrator import events
from infra.orchestrator.events import pipeline_resource, send

def ended(run, verdict, error=None):
    code = error.exit_code if error else 0
    about = {"run_id": run, "pipeline": "tiny", "verdict": verdict, "exit_code": code, "sentence": "s"}
    stages = [StageResult(name="train", status="failed", seconds=1.0)] if verdict == "failed" else []
    events.announce_end(RunReport(**about, stages=stages, error=error.to_json() if error else None))

for what in sys.argv[1:]:
    match what:
        case "failed": ended("r1", "failed", OutOfMemory("value {{ 777 * 777 }} of Ada <!channel>"))
        case "waiting": ended("r2", "waiting", ApprovalPending("w", details={"question": {"n": 0, "deadline": "d"}}))
        case "asks again": ended("r2", "waiting", ApprovalPending("w", details={"question": {"n": 1, "deadline": "d"}}))
        case "crashed": events.announce_resumed("tiny", "r3", 0, None, "s", "reap/r3/0")
        case "not resumed": events.announce_not_resumed("tiny", "r3", None, "s")
        case "promoted": ended("r4", "promoted")
        case "last": ended("r9", "failed", OutOfMemory("o"))
        case "last of the night": ended("r10", "failed", OutOfMemory("o"))
        case "budget":
            resource = {"prefect.resource.id": "trainwright.budget.night", "prefect.resource.name": "night"}
            send("trainwright.budget.warned", resource, {"sentence": "80 % are used up."}, "night/0.8", "tiny")
        case "drift":
            moved = ColumnDrift(column="c", verdict="warning", p=0, nulls=(0, 0), sentence="c: moved")
            for run, rejected in (("r5", False), ("r6", True)):
                events.announce_drift("tiny", run, DriftReport(against="a", columns=[moved]), rejected=rejected)
        case other: send("trainwright.run.failed", {"prefect.resource.id": pipeline_resource(other)}, {}, other, other)
"""
WEBHOOK, CUSTOM = "webhook/pager", "custom-webhook/team"
RULES = [
    {"on": ["failed", "rejected", "waiting", "budget"], "block": WEBHOOK},
    {"on": ["drift", "crashed", "not_resumed", "failed"], "block": WEBHOOK},
    {"on": ["promoted"], "block": CUSTOM},
]
NIGHT = {
    "train": {
        **SPEC["train"],
        "lightning": {**SPEC["train"]["lightning"], "trainer": {"max_epochs": 150}},
        "checkpoint": {"every_steps": 50},
    },
    "promote": {**SPEC["promote"], "approval": "manual"},
    "retry": {"crashed": 1},
    "notify": [{"on": ["failed", "rejected", "waiting", "budget", "crashed", "not_resumed"], "block": WEBHOOK}],
}
TOLD = [
    "tiny: the data was rejected",
    "tiny: a run failed",
    *["tiny: a run waits for an approval"] * 2,
    "tiny: a crashed run is resumed",
    "tiny: a crashed run is not resumed",
    "tiny: the data has drifted",  # not that of the run that was rejected because of it
    "trainwright.budget.warned",  # an event that has a sentence alone
]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@pytest.fixture
def site(tmp_path: Path, state_folder: Path, receiver: Receiver) -> Iterator[Site]:
    with site_with(tmp_path / "site", state_folder / "home") as site:
        address = receiver.url
        said = {"subject": "{{subject}}", "body": "{{body}}"}
        made = [
            block(site, WEBHOOK, {"url": f"{address}/pager", "method": "POST"}),
            block(site, CUSTOM, {"name": "team", "url": f"{address}/team", "method": "POST", "json_data": said}),
        ]
        yield site
        for one in made:
            site.ask(f"/block_documents/{one}", method="DELETE")


def automations(site: Site) -> list[str]:
    return sorted(one["name"] for one in site.ask("/automations/filter", {}))


def test_each_cause_is_one_message(site: Site, receiver: Receiver, tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny", {"notify": RULES})
    site.pool("notified", worker=False)
    others = {"name": "trainwright: tiny: mine", "trigger": {"type": "event", "expect": ["x"], "posture": "Reactive",
              "threshold": 1, "within": 0}, "actions": [{"type": "do-nothing"}]}  # fmt: skip
    site.ask("/automations/", others)

    def deploy(*more: str) -> subprocess.CompletedProcess[str]:
        return trainwright("deploy", spec, "--pool", "notified", *more, "--json", env=site.environment)

    refused = deploy("--set", "notify.0.block=slack-webhook/nobody")
    assert refused.returncode == 2
    said = answer(refused)["error"]["message"]
    assert said.startswith("notify.0.block: ")
    assert f"{CUSTOM}, {WEBHOOK}" in said
    assert automations(site) == ["trainwright: tiny: mine"]
    for _ in range(2):  # the second changes the first's automations
        done = deploy()
        assert done.returncode == 0, done.stderr
    ours = [f"{CUSTOM}: runs", "mine", *(f"{WEBHOOK}: {kind}" for kind in ("budget", "crashes", "drift", "runs"))]
    watching = [
        f"trainwright: {block}: {kind}"
        for block in (CUSTOM, WEBHOOK)
        for kind in ("Trainwright's own flows", "crashes", "late runs", "pools")
    ]
    assert automations(site) == sorted([*(f"trainwright: tiny: {name}" for name in ours), *watching])

    def emit(*what: str) -> None:
        subprocess.run([*ASKED, EMIT, *what], env=site.environment, check=True)

    (tmp_path / "tiny" / "rows.csv").write_text("id,a,b,c,label\n1,7,0,0,0\n")  # 7 breaks the contract
    for _ in range(2):  # the second attaches to the first's verdict
        ran = trainwright("run", spec, "--key", "night", "--json", env=site.environment)
        assert ran.returncode == 3, ran.stderr
    causes = ("failed", "waiting", "crashed", "not resumed", "budget", "drift")
    emit(*causes, "another-pipeline")
    until(lambda: len(receiver.subjects("/pager")) >= 7, what=lambda: receiver.messages)
    until(
        lambda: site.ask("/events/filter", {"filter": {"event": {"name": ["trainwright.run.not_resumed"]}}})["events"]
    )
    # A retry, or a second execution, and then three that are new. The last comes after whatever must not come.
    emit(*causes, "asks again", "promoted", "last")
    until(lambda: receiver.subjects("/team"))
    until(lambda: len(receiver.subjects("/pager")) > len(TOLD), what=lambda: receiver.messages)
    assert receiver.subjects("/pager") == sorted([*TOLD, "tiny: a run failed"])
    assert receiver.subjects("/team") == ["tiny: a version was promoted"]
    bodies = " ".join(message["body"] for _, message in receiver.messages)
    assert "failed in train: out of memory (exit code 8)" in bodies
    assert "80 % are used up." in bodies
    assert not [leak for leak in ("Ada", "603729", "{{", "<!channel>") if leak in bodies]
    assert deploy("--set", "notify=[]").returncode == 0
    assert automations(site) == ["trainwright: tiny: mine"]


def trains(site: Site, store: Store, flow_run: dict[str, Any], generation: int) -> None:
    """Wait until a generation of the only training has saved a checkpoint."""

    def saved() -> bool:
        assert site.state(flow_run) not in FINAL, site.now(flow_run)["state"]
        begun = list(Path(store.uri).glob(f"trainings/*/g{generation}/beat-0.json"))
        return bool(begun) and any(committed(store, f"trainings/{one}")[0] for one in store.list("trainings"))

    until(saved, what=lambda: site.now(flow_run)["state"])


def budget(folder: Path, hours: float) -> None:
    limit = f"{{per: run, limit: {{hours: {hours}}}}}"
    (folder / "budgets.yaml").write_text(f"version: 1\nevery_s: 2\nbudgets:\n  night: {limit}\n")
    done = trainwright("budget", "apply", folder / "budgets.yaml", "--store", folder / ".trainwright")
    assert done.returncode == 0, done.stderr


def ended(site: Site, flow_run: dict[str, Any]) -> dict[str, Any]:
    """The final state of a flow run."""
    until(lambda: site.state(flow_run) in FINAL, what=lambda: site.now(flow_run)["state"])
    return dict(site.now(flow_run)["state"])


def reaped(site: Site, store: Store) -> str:
    """What a look of the reaper, by a worker, says."""
    look = site.run("night", "reap", {"store": store.uri, "pool": "night"}, "flows.reap.reap")
    return str(ended(site, look)["message"])


def continued_by_a_person(site: Site, store: Store, run_id: str) -> None:
    """Resume a run until it asks, twice, approve it, and resume it to its end."""
    asked = ("--store", store.uri, "--json")
    for _ in range(2):
        waits = trainwright("resume", run_id, *asked, env=site.environment)
        assert (waits.returncode, answer(waits)["verdict"]) == (9, "waiting"), waits.stderr
    assert trainwright("approve", run_id, "--reason", "seen", *asked, env=site.environment).returncode == 0
    ends = trainwright("resume", run_id, *asked, env=site.environment)
    assert (ends.returncode, answer(ends)["verdict"]) == (0, "promoted"), ends.stderr


@pytest.mark.slow
def test_a_night_of_real_runs_is_a_message_for_each_cause(site: Site, receiver: Receiver, tmp_path: Path) -> None:
    """Data that is rejected; a conductor that is killed, resumed, stopped by a budget, resumed, and asks a person."""
    worker = site.work(site.pool("night", worker=False))
    spec = write_project(tmp_path / "tiny", NIGHT)
    (slow := tmp_path / "slow").touch()
    (spec.parent / "net.py").write_text(slowed(slow))
    deployed = trainwright("deploy", spec, "--pool", "night", "--json", env=site.environment)
    assert deployed.returncode == 0, deployed.stderr
    site.pause("reap/night")
    run_it = f"/deployments/{site.ask('/deployments/name/retrain/tiny', method='GET')['id']}/create_flow_run"
    subjects: list[str] = []

    def told(subject: str) -> None:
        subjects.append(f"tiny: {subject}")
        until(lambda: len(receiver.subjects("/pager")) >= len(subjects), what=lambda: receiver.messages)
        assert receiver.subjects("/pager") == sorted(subjects)

    (spec.parent / "rows.csv").write_text("id,a,b,c,label\n1,7,0,0,0\n")  # 7 breaks the contract
    assert ended(site, site.ask(run_it))["name"] == "Rejected"
    told("the data was rejected")

    write_rows(spec.parent / "rows.csv")
    budget(spec.parent, hours=10)
    store = open_store(str(spec.parent / ".trainwright"))
    flow_run = site.ask(run_it)
    trains(site, store, flow_run, 0)
    kill_marked(worker)
    site.work("night")
    assert "is executed again by a worker" in reaped(site, store)
    told("a crashed run is resumed")

    trains(site, store, flow_run, 1)
    budget(spec.parent, hours=0.0001)
    state = ended(site, flow_run)
    assert (state["type"], state["name"]) == ("FAILED", "OverBudget")
    assert "The budget night (all runs, " in state["message"]
    run_id = site.now(flow_run)["name"].split()[1]
    assert store.read_json(layout.run_attempt(run_id, 0))["exit_code"] == 7
    told("the budget night is used up")
    assert "Every run has a verdict" in reaped(site, store), "a person raises a budget"

    budget(spec.parent, hours=10)
    slow.unlink()
    continued_by_a_person(site, store, run_id)
    told("a run waits for an approval")
    subprocess.run([*ASKED, EMIT, "last of the night"], env=site.environment, check=True)
    told("a run failed")  # it comes after whatever must not come
