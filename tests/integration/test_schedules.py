"""Runs that nobody starts by hand, on a real server: data that arrives, a newer run, and what a reaper leaves alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import s3fs
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from data_contracts.errors import Fenced
from data_contracts.executions import Crash
from infra.orchestrator.deployments import ensure_system
from infra.orchestrator.resuming import MOST_STARTS, PrefectResumer, start_lost_again
from infra.prices import VARIABLE
from infra.scrub import due_on
from infra.store import Store, layout, open_store
from tasks.run.resolve import scheduled_key
from tests.support.damage import flipped, overwrite
from tests.support.pool import FINAL, Site, password_in, processes_of, site_of, until
from tests.support.s3 import S3Server
from tests.support.tiny import SPEC, trainwright, write_project, write_rows

pytestmark = pytest.mark.usefixtures("forked_prefect")
POOL = "times"
RUN = "20261125-010203-0a1b2c"
LONG = {
    "train": {
        **SPEC["train"],
        "lightning": {**SPEC["train"]["lightning"], "trainer": {"max_epochs": 100_000}},
        "checkpoint": {"every_steps": 20},
    },
    "schedule": {"overlap": "cancel_old", "sensor": {"settle_s": 0}},
}


site = site_of(POOL)


def looked(site: Site, name: str = "tiny") -> dict[str, Any]:
    """The final state of a look by a worker."""
    deployment = site.ask(f"/deployments/name/sensor/{name}", method="GET")
    look = site.ask(f"/deployments/{deployment['id']}/create_flow_run")
    until(lambda: site.state(look) in FINAL, what=lambda: site.now(look)["state"])
    return dict(site.now(look)["state"])


def started(site: Site, num: int, name: str = "tiny") -> dict[str, Any]:
    """The newest of so many flow runs of the pipeline."""
    deployment = site.ask(f"/deployments/name/retrain/{name}", method="GET")
    wanted = {"deployments": {"id": {"any_": [deployment["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
    runs = site.ask("/flow_runs/filter", wanted)
    assert len(runs) == num, runs
    return dict(runs[-1])


def trains(site: Site, store: Store, flow_run: dict[str, Any], num: int) -> None:
    """Wait until so many generations of trainings have begun."""

    def begun() -> bool:
        assert site.state(flow_run) not in FINAL, site.now(flow_run)["state"]
        return len(list(Path(store.uri).glob("trainings/*/g*/beat-0.json"))) >= num

    until(begun, what=lambda: site.now(flow_run)["state"])


def test_data_that_arrives_starts_a_run_which_takes_the_place_of_the_earlier_one(site: Site, tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny", LONG)
    made = trainwright("deploy", spec, "--pool", POOL, "--json", env=site.environment)
    assert made.returncode == 0, made.stderr
    site.pause("sensor/tiny", f"reap/{POOL}")  # a look at its own time would be faster than the one that is asked for
    store = open_store(str(spec.parent / ".trainwright"))
    assert looked(site)["name"] == "First"
    write_rows(spec.parent / "rows.csv", seed=2)
    said = looked(site)
    assert said["name"] == "Started", said
    for _ in range(2):
        assert looked(site)["name"] == "Nothing"
    looks = {"flow_runs": {"state": {"name": {"any_": ["Nothing"]}}}, "flows": {"name": {"any_": ["sensor"]}}}
    assert len(site.ask("/flow_runs/filter", looks)) == 1, "of looks that found nothing, the last one stays"
    old = started(site, 1)
    assert {"trainwright", "pipeline:tiny", "team:tests"} <= set(old["tags"]), "from the moment it was asked for"
    trains(site, store, old, 1)

    write_rows(spec.parent / "rows.csv", seed=3)
    assert looked(site)["name"] == "Started"
    new = started(site, 2)
    until(lambda: site.state(old) in FINAL, what=lambda: site.now(old)["state"])
    state = site.now(old)["state"]
    assert (state["type"], state["name"]) == ("CANCELLED", "Cancelled")
    assert state["message"].endswith("A newer run took its place (schedule.overlap: cancel_old).")
    until(lambda: not processes_of(site, old), what=lambda: processes_of(site, old))
    trains(site, store, new, 2)
    reports = [store.read_json(layout.run_attempt(run_id, 0)) for run_id in store.list(layout.runs())
               if store.list(layout.run_attempts(run_id))]  # fmt: skip
    assert [(one["verdict"], one["trigger"]) for one in reports] == [("cancelled", "automation")]
    site.cancel(new)
    until(lambda: site.state(new) in FINAL, what=lambda: site.now(new)["state"])


def kept(site: Site, title: str, uri: str) -> dict[str, Any]:
    """The final state of a store's upkeep by a worker, on the latest day on which a sealed directory is due."""
    day = next(at for n in range(30) if due_on((at := datetime.now(UTC) - timedelta(days=n)).date(), [uri]))
    due = {"type": "SCHEDULED", "state_details": {"scheduled_time": day.isoformat()}}
    deployment = site.ask(f"/deployments/name/{title}", method="GET")
    run = site.ask(f"/deployments/{deployment['id']}/create_flow_run", {"state": due})
    until(lambda: site.state(run) in FINAL, what=lambda: site.now(run)["state"])
    return dict(site.now(run)["state"])


def test_a_deployed_store_is_kept_and_a_flipped_bit_in_it_is_named(site: Site, tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny", {"name": "rotten"})

    def deployed() -> str:
        made = trainwright("deploy", spec, "--pool", POOL, "--json", env=site.environment)
        assert made.returncode == 0, made.stderr
        return str(re.findall("upkeep of .*, each day: (upkeep/.*-tiny-trainwright-.*)", made.stderr)[0])

    title = deployed()
    site.pause(title)
    assert deployed() == title
    deployment = site.ask(f"/deployments/name/{title}", method="GET")
    store = open_store(str(spec.parent / ".trainwright"))
    assert (deployment["paused"], deployment["parameters"]["store"]) == (True, store.uri)
    uri = "datasets/k-0"
    writer = store.writer(uri)
    writer.put("part-0", b"x" * 100)
    writer.seal("dataset", {}, {})
    state = kept(site, title, uri)
    assert (state["type"], "1 of the 1 sealed directories that are due" in state["message"]) == ("COMPLETED", True)

    file = Path(store.uri, uri, "part-0")
    overwrite(file, flipped(file.read_bytes(), 5))
    state = kept(site, title, uri)
    damage = f"The store {store.uri} is damaged in 1 of its sealed directories: {uri}/part-0 does not hold the bytes"
    assert (state["type"], damage in state["message"]) == ("FAILED", True), state
    pages = site.ask("/artifacts/filter", {"artifacts": {"key": {"any_": [title.replace("/", "-")]}}})
    assert [f"`{uri}`" in page["data"] for page in sorted(pages, key=lambda page: page["created"])] == [False, True]
    events = {"filter": {"event": {"name": ["trainwright.store.damaged"]}}}
    [event] = until(lambda: site.ask("/events/filter", events)["events"])
    assert event["payload"]["directories"] == [uri]


@pytest.mark.slow
def test_a_sensor_watches_a_bucket_and_keeps_its_cursor_in_another(
    site: Site, s3_server: S3Server, tmp_path: Path
) -> None:
    raw, kept = s3_server.bucket(), s3_server.bucket()
    objects = s3fs.S3FileSystem(key="any", secret="any", endpoint_url=s3_server.url, use_listings_cache=False)
    places = {
        "data": {"source": {"uri": f"s3://{raw}/in/*.csv", "storage_options": s3_server.options}},
        "store": {"uri": f"s3://{kept}/team", "storage_options": s3_server.options},
    }
    spec = write_project(tmp_path / "tiny", {"name": "bucket", **places, "schedule": {"sensor": {"settle_s": 0}}})
    objects.put(str(spec.parent / "rows.csv"), f"{raw}/in/old.csv")
    made = trainwright("deploy", spec, "--pool", site.pool("bucket"), "--json", env=site.environment)
    assert made.returncode == 0, made.stderr
    site.pause("sensor/bucket", "reap/bucket")
    assert looked(site, "bucket")["name"] == "First"
    write_rows(spec.parent / "rows.csv", seed=2)
    objects.put(str(spec.parent / "rows.csv"), f"{raw}/in/new.csv")
    state = looked(site, "bucket")
    assert (state["name"], f"s3://{raw}/in/new.csv is new or changed." in state["message"]) == (
        "Started", True,
    )  # fmt: skip
    assert looked(site, "bucket")["name"] == "Nothing"
    run = started(site, 1, "bucket")
    until(lambda: site.state(run) in FINAL, what=lambda: site.now(run)["state"])
    assert site.now(run)["state"]["name"] == "Promoted"

    objects.rm(f"{kept}/team/{layout.sensor_cursor('bucket')}")
    state = looked(site, "bucket")
    assert (state["type"], state["message"].count("\n")) == ("FAILED", 0)
    assert state["message"].startswith("The cursor of the sensor of bucket was deleted, so it is unknown which files")
    started(site, 1, "bucket")


def scheduled(site: Site, name: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The only run that the schedule of `retrain/NAME` has begun, once its state is as wanted; no more are begun."""
    deployment = site.ask(f"/deployments/name/retrain/{name}", method="GET")
    of = {"deployments": {"id": {"any_": [deployment["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
    begun = {**of, "flow_runs": {"start_time": {"is_null_": False}}}
    [run, *_] = until(lambda: site.ask("/flow_runs/filter", begun), what=lambda: name)
    site.pause(f"retrain/{name}")
    until(lambda: wanted(site.now(run)["state"]), what=lambda: site.now(run)["state"])
    return dict(site.now(run))


@pytest.mark.slow
def test_scheduled_runs_wait_for_their_hour_and_then_for_their_turn(site: Site, tmp_path: Path) -> None:
    """The best hour lies two hours ahead, so the test lets it come: it changes the price book and the state's time."""
    book, best = tmp_path / "book.yaml", (datetime.now(UTC) + timedelta(hours=2)).hour
    book.write_text(f'version: 1\nhours: [{{date: 2026-01-01, hours: "{best:02}-{best + 1:02}", price: 0.5}}]\n')
    site.environment[VARIABLE] = str(book)
    site.pool("hours")
    train = LONG["train"]
    spec = write_project(tmp_path / "tiny", {"name": "hours", "train": train, "schedule": {"within": "4h"}})
    store = open_store(str(spec.parent / ".trainwright"))

    def deployed(name: str, *more: str) -> None:
        every = ("--pool", "hours", "--name", name, "--cron", "* * * * *")
        made = trainwright("deploy", spec, *every, *more, env=site.environment)
        assert made.returncode == 0, made.stderr

    deployed("waits")
    site.pause("reap/hours")
    first = scheduled(site, "waits", lambda state: "the run waits until" in (state["message"] or ""))
    assert f" {best:02}:00 UTC, the best hour within 4h of its time (50% of" in first["state"]["message"]
    assert first["state"]["type"] == "SCHEDULED"
    until(lambda: not processes_of(site, first))
    assert store.list(layout.runs()) == [], "no process waits, and no run has begun"

    book.write_text("version: 1\n")
    due = {"type": "SCHEDULED", "state_details": {"scheduled_time": datetime.now(UTC).isoformat()}}
    site.ask(f"/flow_runs/{first['id']}/set_state", {"state": due, "force": True})
    trains(site, store, first, 1)
    [run_id] = store.list(layout.runs())
    at = datetime.fromisoformat(first["expected_start_time"])
    named = store.read_json(layout.trigger(scheduled_key(first["deployment_id"], at)))
    assert named["run_id"] == run_id, "its key is that of its scheduled time"

    for overlap in ("skip", "queue"):
        deployed(overlap, "--set", f"schedule.overlap={overlap}")
    skipped = scheduled(site, "skip", lambda state: state["type"] in FINAL)
    unfinished = f"The run {run_id} of hours is unfinished (schedule.overlap: skip)."
    assert (skipped["state"]["name"], skipped["state"]["message"]) == ("Skipped", unfinished)
    queued = scheduled(site, "queue", lambda state: state["type"] == "RUNNING")
    assert (site.state(first), store.list(layout.runs())) == ("RUNNING", [run_id])
    site.cancel(first)
    trains(site, store, queued, 2)
    assert site.state(first) == "CANCELLED"
    site.cancel(queued)
    until(lambda: site.state(queued) in FINAL, what=lambda: site.now(queued)["state"])
    assert len(store.list(layout.runs())) == 2


@pytest.fixture
def here(site: Site, state_folder: Path) -> Iterator[None]:
    """This process asks the site's server."""
    password = password_in(state_folder / "home")
    with temporary_settings({PREFECT_API_URL: site.url, PREFECT_API_AUTH_STRING: password}):
        yield


def in_state(site: Site, pool: str, kind: str, name: str = "") -> dict[str, Any]:
    """A flow run of a pool without a worker, in a state."""
    made = site.run(pool, "retrain", {"spec": "missing.yaml"}, "flows.retrain.retrain")
    site.ask(f"/flow_runs/{made['id']}", {"name": f"tiny {RUN}"}, method="PATCH")
    site.ask(f"/flow_runs/{made['id']}/set_state", {"state": {"type": kind, "name": name or None}, "force": True})
    return made


def beat(site: Site, flow_run: dict[str, Any]) -> None:
    """Let the server have a heartbeat of a flow run's process, an hour from now."""
    resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run['id']}"}
    at = datetime.now(UTC) + timedelta(hours=1)
    event = {"id": str(uuid4()), "event": "prefect.flow-run.heartbeat", "occurred": at.isoformat()}
    site.ask("/events", [{**event, "resource": resource}])
    wanted = {
        "resource": {"id": list(resource.values())},
        "occurred": {"since": at.isoformat(), "until": at.isoformat()},
    }
    until(lambda: site.ask("/events/filter", {"filter": wanted})["events"])


def test_a_reaper_starts_what_lost_its_process_and_leaves_alone_what_a_person_stopped(site: Site, here: None) -> None:
    pool = site.pool("quiet", worker=False)
    kinds = ("PENDING", "RUNNING", "CRASHED", "RUNNING", "CRASHED")
    pending, running, unopened, beating, opened = (in_state(site, pool, kind) for kind in kinds)
    site.ask(f"/flow_runs/{unopened['id']}", {"name": "tiny"}, method="PATCH")
    beat(site, beating)
    cancelling = in_state(site, pool, "RUNNING")
    site.cancel(cancelling)
    stopped = [cancelling, in_state(site, pool, "CANCELLED"), in_state(site, pool, "PAUSED", "Suspended")]
    assert site.state(cancelling) == "CANCELLING"
    left = [*stopped, beating, opened]
    states = [site.now(one)["state"]["id"] for one in left]
    assert start_lost_again() == ["the flow run tiny was crashed without a process, and is given to a worker again"]
    assert (site.state(pending), site.state(running)) == ("PENDING", "RUNNING"), "their processes may be about to begin"
    assert sorted(start_lost_again(0)) == [
        f"the flow run tiny {RUN} was {kind} without a process, and is given to a worker again"
        for kind in ("pending", "running")
    ]
    assert {site.now(one)["state"]["name"] for one in (pending, running, unopened)} == {"AwaitingRetry"}
    for one in stopped:
        assert PrefectResumer(pool).state_of(one["id"], RUN).state in ("cancelled", "stopped")
        crash = Crash(run_id=RUN, n=0, token=1, ends=0, flow_run=one["id"], at="", by="")
        with pytest.raises(Fenced):
            PrefectResumer(pool).resume(crash, "/s", "tiny", f"key-{one['id']}")
    assert [site.now(one)["state"]["id"] for one in left] == states


def test_what_nobody_starts_again_ends_when_its_process_is_lost(site: Site, here: None) -> None:
    """A command's own flow run that died before it opened a run, and a look of the reaper's."""
    pool = site.pool("by-hand", worker=False)
    look = site.run(pool, "reap", {}, "flows.reap.reap")
    site.ask(f"/flow_runs/{look['id']}/set_state", {"state": {"type": "RUNNING"}, "force": True})
    flow = site.ask("/flows/", {"name": "retrain"})
    wanted = {"flow_id": flow["id"], "state": {"type": "RUNNING"}}
    names = ("tiny", "tiny", "tiny", f"tiny {RUN}")
    command, beating, crashed, opened = (site.ask("/flow_runs/", {**wanted, "name": name}) for name in names)
    site.ask(f"/flow_runs/{crashed['id']}/set_state", {"state": {"type": "CRASHED"}, "force": True})
    beat(site, beating)
    assert start_lost_again() == [], "they may be at work"
    ended = [sentence for sentence in start_lost_again(0) if sentence.endswith("ended")]
    assert sorted(ended) == sorted(
        f"the flow run {one['name']} was running without a process, and is ended" for one in (command, look)
    )
    states = [site.now(one)["state"]["name"] for one in (command, look, beating, crashed, opened)]
    assert states == ["ProcessDied", "ProcessDied", "Running", "Crashed", "Running"]
    assert start_lost_again(0) == []


def test_a_look_that_died_with_its_worker_holds_up_no_other(site: Site, here: None) -> None:
    """Its slot is free five minutes later; but a night without a worker must not end with a hundred looks at once."""
    pool = site.pool("looks", worker=False)
    ensure_system(pool)
    site.pause(f"reap/{pool}")
    made = site.ask(f"/deployments/name/reap/{pool}", method="GET")

    def look() -> str:
        begun = site.ask(f"/deployments/{made['id']}/create_flow_run")
        site.ask(f"/flow_runs/{begun['id']}/set_state", {"state": {"type": "PENDING"}})
        return site.state(begun)

    assert [look() for _ in range(3)] == ["PENDING", "PENDING", "CANCELLED"]
    site.ask(f"/deployments/{made['id']}", {"concurrency_limit": 1}, method="PATCH")  # of an earlier version
    for limit in (1, 2):
        assert site.ask(f"/deployments/{made['id']}", method="GET")["global_concurrency_limit"]["limit"] == limit
        ensure_system(pool)


def test_a_flow_run_that_dies_again_and_again_before_it_opens_a_run_ends(site: Site, here: None) -> None:
    pool = site.pool("short-lived", worker=False)
    made = in_state(site, pool, "CRASHED")
    site.ask(f"/flow_runs/{made['id']}", {"name": "tiny"}, method="PATCH")
    for _ in range(MOST_STARTS):
        assert "is given to a worker again" in start_lost_again()[0]
        site.ask(f"/flow_runs/{made['id']}/set_state", {"state": {"type": "CRASHED"}, "force": True})
    ended = f"Its process died. The flow run tiny was given to workers {MOST_STARTS} times before."
    assert start_lost_again() == [ended]
    assert site.now(made)["state"]["message"] == ended
    assert start_lost_again() == []


def test_a_run_that_has_not_begun_is_found_by_the_name_of_its_flow_run(site: Site, here: None) -> None:
    run_id = "20261128-010203-0b1b2c"
    pool = site.pool("unbegun", worker=False)
    made = in_state(site, pool, "CANCELLED")
    site.ask(f"/flow_runs/{made['id']}", {"name": f"tiny {run_id}"}, method="PATCH")
    assert PrefectResumer(pool).state_of(None, run_id).state == "cancelled"
    assert PrefectResumer(pool).state_of(None, run_id.replace("b", "c")).state == "gone"


def test_the_slots_of_a_dead_gang_are_free_once_a_reaper_gave_them_back(site: Site, here: None) -> None:
    pool = site.pool("narrow", slots=2, worker=False)
    taken = site.ask(
        "/v2/concurrency_limits/increment-with-lease",
        {"names": [pool], "slots": 2, "mode": "concurrency", "lease_duration": 300},
    )
    assert site.slots(pool) == 2
    PrefectResumer(pool).release(["no-lease", taken["lease_id"], taken["lease_id"]])
    assert site.slots(pool) == 0
