"""A run that is executed twice at once: the first process is stopped somewhere, and continues after the second."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.pool import Site, flow_process, processes_of, site_of, until
from tests.support.tiny import write_project

pytestmark = pytest.mark.sweep


site = site_of("twice", slots=4)


# The file after which the first execution is stopped: it is in each of the stages in turn, and at the end of the run.
STOPS = ["resolved", "validate", "shard", "launch", "train", "verify", "evaluate", "promote", "report"]


@pytest.mark.parametrize("after", STOPS)
def test_a_run_that_prefect_executes_twice_ends_as_promoted_wherever_the_first_is_stopped(
    after: str, site: Site, tmp_path: Path
) -> None:
    spec = write_project(tmp_path / "tiny")
    run = site.run("twice", "retrain", {"spec": str(spec)}, "flows.retrain.retrain")
    home = tmp_path / "tiny" / ".trainwright"
    until(lambda: any(home.glob(f"**/{after}.json")), what=lambda: site.now(run)["state"])
    first = flow_process(site, run)
    os.kill(first, signal.SIGSTOP)
    began = time.monotonic()
    try:
        site.execute_again(run)
        until(lambda: site.now(run)["state"]["name"] == "Promoted", what=lambda: site.now(run)["state"])
        print(f"stopped after {after}: the second ended after {time.monotonic() - began:.0f} s")
    finally:
        os.kill(first, signal.SIGCONT)
    until(lambda: not processes_of(site, run))
    states = site.api.request("GET", "/flow_run_states/", params={"flow_run_id": run["id"]}).json()
    print([state["name"] for state in sorted(states, key=lambda state: state["timestamp"])])
    assert site.now(run)["state"]["name"] == "Promoted"
    (report,) = home.glob("runs/*/report.json")
    assert json.loads(report.read_text())["verdict"] == "promoted"
    assert len(list(home.glob("aliases/*/history/*"))) == 1, "the alias moved once"
