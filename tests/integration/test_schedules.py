"""Runs that nobody starts by hand, on a real server: data that arrives, a newer run, and what a reaper leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from data_contracts.errors import Fenced
from data_contracts.executions import Crash
from infra.orchestrator.pending_flow_runs import start_pending_again
from infra.orchestrator.resuming import PrefectResumer
from infra.store import Store, layout, open_store
from tests.support.pool import FINAL, Site, password_in, processes_of, server_url, until
from tests.support.tiny import SPEC, trainwright, write_project, write_rows

POOL = "times"
RUN = "20261125-010203-0a1b2c"
LONG = {
    "train": {
        **SPEC["train"],
        "lightning": {**SPEC["train"]["lightning"], "trainer": {"max_epochs": 400}},
        "checkpoint": {"every_steps": 20},
    },
    "schedule": {"overlap": "cancel_old", "sensor": {"settle_s": 0}},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[Site]:
    site = Site(server_url(), tmp_path_factory.mktemp("site"), password_in(state_folder / "home"))
    try:
        site.pool(POOL, worker=True)
        yield site
    finally:
        site.close()


def looked(site: Site) -> dict[str, Any]:
    """The final state of a look by a worker."""
    deployment = site.ask("/deployments/name/sensor/tiny", method="GET")
    look = site.ask(f"/deployments/{deployment['id']}/create_flow_run")
    until(lambda: site.state(look) in FINAL, what=lambda: site.now(look)["state"])
    return dict(site.now(look)["state"])


def started(site: Site, num: int) -> dict[str, Any]:
    """The newest of so many flow runs of the pipeline."""
    deployment = site.ask("/deployments/name/retrain/tiny", method="GET")
    wanted = {"deployments": {"id": {"any_": [deployment["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
    runs = site.ask("/flow_runs/filter", wanted)
    assert len(runs) == num, runs
    return dict(runs[-1])


def trains(site: Site, store: Store, flow_run: dict[str, Any], num: int) -> None:
    """Wait until so many trainings have begun."""

    def begun() -> bool:
        assert site.state(flow_run) not in FINAL, site.now(flow_run)["state"]
        return len(list(Path(store.uri).glob("trainings/*/g0/node-0/beat-0.json"))) == num

    until(begun, what=lambda: site.now(flow_run)["state"])


def test_data_that_arrives_starts_a_run_which_takes_the_place_of_the_earlier_one(site: Site, tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny", LONG)
    made = trainwright("deploy", spec, "--pool", POOL, "--json", env=site.environment)
    assert made.returncode == 0, made.stderr
    store = open_store(str(spec.parent / ".trainwright"))
    assert looked(site)["name"] == "First"
    write_rows(spec.parent / "rows.csv", seed=2)
    said = looked(site)
    assert said["name"] == "Started", said
    assert looked(site)["name"] == "Nothing"
    old = started(site, 1)
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


def test_a_reaper_starts_what_stayed_pending_and_leaves_alone_what_a_person_stopped(site: Site, here: None) -> None:
    pool = site.pool("quiet", worker=False)
    pending, running = (in_state(site, pool, kind) for kind in ("PENDING", "RUNNING"))
    stopped = [in_state(site, pool, "CANCELLED"), in_state(site, pool, "CANCELLING"),
               in_state(site, pool, "PAUSED", "Suspended")]  # fmt: skip
    states = [site.now(one)["state"]["id"] for one in stopped]
    assert start_pending_again() == [], "its worker may be about to begin it"
    assert start_pending_again(0) == [f"the flow run tiny {RUN} was pending, and is given to a worker again"]
    assert (site.now(pending)["state"]["name"], site.state(running)) == ("AwaitingRetry", "RUNNING")
    for one in stopped:
        assert PrefectResumer(pool).standing(one["id"]).state == "stopped"
        crash = Crash(run_id=RUN, n=0, token=1, ends=0, flow_run=one["id"], at="", by="")
        with pytest.raises(Fenced):
            PrefectResumer(pool).resume(crash, "/s", "tiny", f"key-{one['id']}")
    assert [site.now(one)["state"]["id"] for one in stopped] == states


def test_the_slots_of_a_dead_gang_are_free_once_a_reaper_gave_them_back(site: Site, here: None) -> None:
    pool = site.pool("narrow", slots=2, worker=False)
    taken = site.ask(
        "/v2/concurrency_limits/increment-with-lease",
        {"names": [pool], "slots": 2, "mode": "concurrency", "lease_duration": 300},
    )
    assert site.slots(pool) == 2
    PrefectResumer(pool).release(["no-lease", taken["lease_id"], taken["lease_id"]])
    assert site.slots(pool) == 0
