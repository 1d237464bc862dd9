"""A scrape of a run's third process, after two crashes: each process is killed, and the next counts on."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as text_format

from infra.traces import METRICS_PORT, metrics_token
from tests.support.prometheus import free_port
from tests.support.tiny import write_project

# Carries the run out until it is killed: one generation lost a node, and is recorded.
PROCESS = """
import sys
from data_contracts.executions import GangUsage, NodeUsage
from infra.processes.this_process import now_s
from tasks.run.executions import attach
from tasks.run.meter import metered, used_by_gang
from tasks.run.resolve import RunOptions
from tasks.run.progress import GangReleased, notify
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.telemetry import observed

def line(run):
    node = NodeUsage(number=0, started=now_s() - 10, released=now_s())
    where = {"stage": "train", "where": "trainings/k-0", "local": True, "nodes": [node]}
    usage = GangUsage(generation=int(sys.argv[2]), ended="node_lost", **where)
    used_by_gang(run, "train", usage)
    notify(GangReleased(usage))
    print("ready", flush=True)
    sys.stdin.read()

run = open_run(read_spec(sys.argv[1]), options=RunOptions(key="k", trigger="ci"))
attach(metered(observed(line)))(run)
"""


@contextmanager
def process(spec: Path, generation: int) -> Iterator[None]:
    """A process that carries the run out, and is killed."""
    command = [sys.executable, "-c", PROCESS, str(spec), str(generation)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout.readline() == b"ready\n"
            yield
        finally:
            running.kill()


def scraped(port: int) -> dict[tuple[str, str], float]:
    """The value of each sample, by its name and its cause."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {metrics_token()}"})
    found = [one for family in text_format(connection.getresponse().read().decode()) for one in family.samples]
    assert {(one.labels["pipeline"], one.labels["pool"]) for one in found} == {("tiny", "here")}
    return {(one.name.removeprefix("trainwright_"), one.labels.get("cause", "")): one.value for one in found}


def test_two_crashes_and_what_failed_before_them_are_counted(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, scrapes = write_project(tmp_path / "tiny"), []
    for generation in range(3):
        port = free_port()
        monkeypatch.setenv(METRICS_PORT, str(port))
        with process(spec, generation):
            scrapes.append(scraped(port))
    assert [one["restarts_total", "crashed"] for one in scrapes] == [0, 1, 2]
    assert [one["restarts_total", "node_lost"] for one in scrapes] == [1, 2, 3]
    # Without the processes' own time, of which a scrape that comes late has more than the records of a killed one.
    paid = [
        sum(value for (name, cause), value in one.items() if name == "node_time_seconds" and cause != "conductor")
        for one in scrapes
    ]
    assert paid[0] < paid[1] < paid[2]
