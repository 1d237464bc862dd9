"""The validate stage on a real Dask cluster: the report of this machine, though a worker is killed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.dask_cluster import Cluster, ended, runs, wait_for
from tests.support.tiny import write_project

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("forked_prefect")]

ROWS = (200_000, 0, 150_000, 30_000, 1, 100_000, 2_000)  # of files, one of them without rows
# One expectation holds by what adds up, one reads all files again, one does not hold.
SUITE = {
    "name": "days",
    "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "min_value": 0, "max_value": 1}},
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}},
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "b", "max_value": 0.99},
            "severity": "info",
        },
    ],
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of two workers."""
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster")
    cluster.worker()
    cluster.worker()
    cluster.wait_for_workers(2)
    yield cluster
    cluster.stop()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of a pipeline whose data is some files of unequal sizes."""
    folder, draw, first = tmp_path / "project", np.random.default_rng(0), 0
    write_project(folder, {"data": {"source": "days/*.parquet"}})
    (folder / "suite.json").write_text(json.dumps(SUITE))
    for name in ("days", "scratch"):
        (folder / name).mkdir()
    for number, rows in enumerate(ROWS):
        table = pa.table({"id": np.arange(first, first + rows), "a": draw.random(rows), "b": draw.random(rows)})
        pq.write_table(table.append_column("c", pa.array(draw.random(rows))), folder / "days" / f"{number}.parquet")
        first += rows
    return folder


def test_the_same_report_as_from_this_machine_though_a_worker_is_killed(cluster: Cluster, project: Path) -> None:
    runner = json.dumps({"dask": cluster.address, "scratch": str(project / "scratch")})
    flow = runs("validate", project, ["store=here"], [f"contract.runner={runner}", "store=there"])
    wait_for(lambda: list((project / "scratch").iterdir()), "the second run")
    wait_for(lambda: len(cluster.pieces()) == 2, "work on both workers")
    cluster.processes[-1].kill()
    here, there = ended(flow)
    assert there["id"] == here["id"]
    for name in ("handoff.json", "profile.json"):
        assert (project / "there" / there["uri"] / name).read_bytes() == (
            project / "here" / here["uri"] / name
        ).read_bytes()
    assert list((project / "scratch").iterdir()) == []
