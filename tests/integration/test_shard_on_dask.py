"""The shard stage on a real Dask cluster: a scheduler and workers that are processes of their own."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest

from data_contracts.errors import NodeLost, StorageUnavailable, UsageError
from infra.code_bundle import ROOMS
from tasks.stages import dask_cluster
from tasks.stages.shard import ON_CLUSTER
from tests.support.approved import approve_here
from tests.support.dask_cluster import Cluster, ended, runs, wait_for
from tests.support.tiny import write_project, write_rows
from tests.support.waiting import free_port

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("forked_prefect")]

ROOT = Path(__file__).parents[2]
FILES = 2
FEATURES = '''\
import os
import pathlib
import time

import pyarrow as pa


def doubled(batch, gate, broken=False):
    """Waits while there is a file `gate`, and says so beside it."""
    gate = pathlib.Path(gate)
    if broken:
        raise RuntimeError("row 7 is bad")
    if gate.exists():
        (gate.parent / f"waits-{os.getpid()}").touch()
    while gate.exists():
        time.sleep(0.02)
    return batch.append_column("twice", pa.array([2 * x for x in batch["a"].to_pylist()]))
'''


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without workers."""
    cluster = Cluster(tmp_path)
    with distributed.Client(cluster.address, timeout=120, set_as_default=False):  # its scheduler answers
        yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two workers; the last tests that use it end one of them, then the scheduler."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    cluster.worker()
    cluster.worker()
    cluster.wait_for_workers(2)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pipeline whose data is some files, and whose transform waits while there is a file `gate`."""
    folder = tmp_path_factory.mktemp("dask")
    for name in ("days", "scratch"):
        (folder / name).mkdir()
    transform = {"call": "features.doubled", "args": {"gate": str(folder / "gate")}}
    shards = {"split": {"key": "id"}, "target_size_bytes": 4096, "transform": transform}
    write_project(folder, {"data": {"source": "days/*.csv"}, "shards": shards})
    (folder / "features.py").write_text(FEATURES)
    for number in range(FILES):
        write_rows(folder / "days" / f"{number}.csv", rows=100, seed=number)
    return folder


@pytest.fixture
def gate(project: Path) -> Iterator[Path]:
    """Closed: transforms wait."""
    for mark in project.glob("waits-*"):
        mark.unlink()
    (project / "gate").touch()
    yield project / "gate"
    (project / "gate").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def told(cluster: Cluster, project: Path) -> list[dict[str, Any]]:
    """What became of the stage on this machine, on the cluster, and there with a transform that raises."""
    broken = "shards.transform.args.broken=true"
    there = on(cluster, project, "there"), [*on(cluster, project, "broken"), broken]
    return ended(runs("shard", project, ["store=local"], *there))


def on(cluster: Cluster, project: Path, store: str) -> list[str]:
    """Overrides that have a cluster do the work, with a store of its own."""
    runner = json.dumps({"dask": cluster.address, "scratch": str(project / "scratch")})
    return [f"shards.runner={runner}", f"store={store}"]


def test_the_same_dataset_as_from_this_machine(project: Path, told: list[dict[str, Any]]) -> None:
    here, there, _ = told
    assert there["id"] == here["id"]
    assert list((project / "scratch").iterdir()) == []


def test_a_run_that_is_stopped_leaves_neither_work_nor_files_behind(
    cluster: Cluster, project: Path, gate: Path
) -> None:
    flow = runs("shard", project, on(cluster, project, "stopped"))
    wait_for(lambda: len(list(project.glob("waits-*"))) == 2, "work on both workers")
    flow.send_signal(signal.SIGINT)
    flow.communicate(timeout=480)
    wait_for(lambda: cluster.pieces() == set(), "the end of the pieces")
    assert list((project / "scratch").iterdir()) == []


def test_an_error_of_the_transform_is_told_as_ever(told: list[dict[str, Any]]) -> None:
    *_, broken = told
    assert (broken["error"], broken["exit_code"]) == ("UserCodeError", 8)
    assert "row 7 is bad" in broken["sentence"]


def test_what_a_killed_worker_had_is_done_by_another(
    cluster: Cluster, project: Path, told: list[dict[str, Any]], gate: Path
) -> None:
    flow = runs("shard", project, on(cluster, project, "killed"))
    wait_for(lambda: len(list(project.glob("waits-*"))) == 2, "work on both workers")
    cluster.processes[-1].kill()
    wait_for(lambda: len(cluster.pieces()) == 1, "the end of the child of the killed worker")
    gate.unlink()
    [killed] = ended(flow)
    assert killed["id"] == told[0]["id"]


def test_a_scheduler_that_is_lost_ends_the_stage(cluster: Cluster, project: Path, gate: Path) -> None:
    flow = runs("shard", project, on(cluster, project, "lost"))
    wait_for(lambda: list(project.glob("waits-*")), "work")
    cluster.processes[0].kill()
    [lost] = ended(flow)
    assert (lost["error"], lost["exit_code"]) == ("StorageUnavailable", 5)
    assert f"the Dask scheduler at {cluster.address} was lost" in lost["sentence"]
    wait_for(lambda: cluster.pieces() == set(), "the end of the pieces")


def test_no_scheduler_is_told_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 2.0)
    address = f"tcp://127.0.0.1:{free_port()}"
    approve_here(address, "prefect:settings")
    expected = pytest.raises(StorageUnavailable, match=f"no Dask scheduler answers at {address} within 2 s")
    with expected as caught, dask_cluster._connected(ON_CLUSTER, address):
        pass
    assert caught.value.exit_code == 5


def test_a_cluster_without_workers_is_told(empty: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "NO_WORKERS_S", 2.0)
    with (
        dask_cluster._connected(ON_CLUSTER, empty.address) as client,
        pytest.raises(NodeLost, match="had no worker for 2 s"),
    ):
        dask_cluster._ClusterTasks(ON_CLUSTER, empty.address, client, tmp_path).ready()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda copy: (copy / "infra" / "garbage.py").write_text(""),
            r"has Trainwright \w{12} instead of \w{12}",
        ),
        (
            lambda copy: (copy / "infra" / "code_bundle.py").write_text("import no_blake3"),
            "No module named 'no_blake3'",
        ),
    ],
    ids=["another version", "cannot be imported"],
)
def test_a_worker_with_another_version_is_named(
    change: Callable[[Path], Any], sentence: str, empty: Cluster, tmp_path: Path
) -> None:
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / "other" / room, ignore=shutil.ignore_patterns("__pycache__"))
    change(tmp_path / "other")
    empty.worker(PYTHONPATH=str(tmp_path / "other"))
    empty.wait_for_workers(1)
    with (
        dask_cluster._connected(ON_CLUSTER, empty.address) as client,
        pytest.raises(UsageError, match=sentence) as caught,
    ):
        dask_cluster._ClusterTasks(ON_CLUSTER, empty.address, client, tmp_path).ready()
    assert "the worker tcp://" in caught.value.message
