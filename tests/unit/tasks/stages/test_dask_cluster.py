"""What becomes of a task, as the Dask cluster tells it. (Real ones: tests/integration/test_*_on_dask.py.)"""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest.mock import Mock

import pytest
from distributed.scheduler import KilledWorker

from data_contracts.errors import NodeLost, StorageUnavailable, UsageError
from data_contracts.messages.raw_data import ContractRequest
from infra.code_bundle import installed
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages import dask_cluster
from tasks.stages.contract_check import ON_CLUSTER
from tasks.stages.dask_cluster import _ClusterTasks, _shared_folder, _task_request, do_cluster_task
from tasks.stages.shard import dataset_key

ADDRESS = "tcp://scheduler:8786"


def a_future(status: str, error: Exception | None = None) -> Mock:
    """A future as the client sees it."""
    return Mock(status=status, exception=Mock(return_value=error))


@pytest.fixture
def tasks(tmp_path: Path) -> _ClusterTasks:
    return _ClusterTasks(ON_CLUSTER, ADDRESS, None, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("future", "kind", "sentence"),
    [
        (a_future("lost"), StorageUnavailable, f"contract.runner.dask: the Dask scheduler at {ADDRESS} was lost"),
        (a_future("cancelled"), StorageUnavailable, f"contract.runner.dask: the Dask scheduler at {ADDRESS} was lost"),
        (
            a_future("error", KilledWorker("k", None, 3)),
            NodeLost,
            f"^Piece 7 of the validate stage ended 4 .* {ADDRESS}",
        ),
        (
            a_future("error", ModuleNotFoundError("no tasks")),
            UsageError,
            r"could not begin piece 7 .* \(.*no tasks\)",
        ),
    ],
    ids=["lost", "cancelled", "killed", "unlike"],
)
def test_what_ends_a_task_has_a_cause(tasks: _ClusterTasks, future: Mock, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        tasks._outcome(7, future)


@pytest.mark.usefixtures("home")
def test_the_runner_is_no_part_of_the_key(spec: Path) -> None:
    def key(setting: str) -> str:
        return dataset_key(open_run(read_spec(spec, [setting]), recorded=False))

    cluster = f"shards.runner={{dask: '{ADDRESS}', scratch: /shared}}"
    assert key(cluster) == key("shards.runner=local") != key("shards.seed=1")


def test_nobody_else_can_keep_the_folder_from_going(tmp_path: Path) -> None:
    with _shared_folder(ON_CLUSTER, str(tmp_path)) as folder:
        taken = tmp_path / f"{folder.name}.gone"
        (taken / "not empty").mkdir(parents=True)
    assert list(tmp_path.iterdir()) == [taken]


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_folder_that_others_may_exchange_is_refused(mode: int, tmp_path: Path) -> None:
    scratch = tmp_path / "open" / "scratch"
    scratch.mkdir(parents=True)
    scratch.parent.chmod(mode)
    refused = pytest.raises(UsageError, match="contract.runner.scratch: other users may rename folders in .*scratch")
    with contextlib.nullcontext() if mode & 0o1000 else refused, _shared_folder(ON_CLUSTER, str(scratch)) as folder:
        assert folder.parent == scratch
    assert not list(scratch.iterdir())


def test_a_task_may_take_the_share_of_memory_that_the_spec_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ContractRequest(
        suite={}, files=[], sources=[], root="/", window=None, window_column=None, fail_on="info", sensitive=[]
    )
    task = _task_request(ON_CLUSTER, request, tmp_path, 0, 1e-6).to_json()
    shares: list[float] = []
    monkeypatch.setattr(dask_cluster, "run_child", lambda *_, memory_share, **more: shares.append(memory_share))
    do_cluster_task(task, installed(), False)
    del task["memory_share"]  # as an earlier version sends it
    do_cluster_task(task, installed(), False)
    assert shares == [1e-6, 0.8]
