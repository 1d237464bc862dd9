"""Tasks that are handed over in a folder: the same shards, and errors as ever. (A cluster: integration.)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import ClusterTaskOrder, ClusterTaskOutcome
from infra import cluster_tasks
from infra.cluster_tasks import Cluster, do_cluster_task
from tests.support.cluster_tasks import Elsewhere
from tests.support.sharding import Shards
from training.shard.two_passes import Workers

TABLES = [pa.table({"id": range(n, n + 500), "x": range(n, n + 500)}) for n in (0, 500, 1000)]


def third(number: int) -> int:
    if number == 5:
        raise UsageError("five will not do.")
    return number * 3


@pytest.mark.parametrize("split", [{"key": "id"}, {"time": "x", "fractions": {"train": 0.5, "test": 0.5}}])
def test_tasks_done_elsewhere_make_the_same_shards(split: dict[str, Any], tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path / "shared")
    options = {"split": split, "target_size_bytes": 2048}
    here = Shards(tmp_path / "here", TABLES, **options)
    there = Shards(tmp_path / "there", TABLES, cluster=elsewhere.cluster, **options)
    assert there.digests == here.digests
    assert elsewhere.ordered["gather"] == len(TABLES)
    assert elsewhere.ordered["write_shard"] > 1
    assert list(elsewhere.cluster.folder.iterdir()) == []


def test_results_come_in_order_several_to_a_task(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path / "shared")
    with Workers(4, elsewhere=elsewhere.cluster) as workers:
        assert list(workers.map(third, iter(range(5)), together=2)) == [0, 3, 6, 9, 12]
    assert elsewhere.ordered == {"third": 3}


def test_the_first_items_error_is_raised(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path / "shared")
    found = Workers(4, elsewhere=elsewhere.cluster).map(third, [1, 5, 2])
    assert next(found) == 3
    with pytest.raises(UsageError, match="five will not do"):
        next(found)


@pytest.mark.parametrize("field", ["shards.runner", "contract.runner"])
def test_a_folder_that_a_worker_does_not_see_is_named(field: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{field}.scratch: this worker does not see .*7.piece"):
        do_cluster_task(tmp_path, 7, field)


def test_whoever_waits_for_a_task_is_heard_of_and_reads_its_result_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_tasks, "STILL_WAITING_S", 0.0)
    ordered: list[ClusterTaskOrder] = []

    def on_wait() -> None:
        do_cluster_task(tmp_path, ordered[0].number, "shards.runner")
        (tmp_path / "0.outcome").write_text(json.dumps(ClusterTaskOutcome().to_json()))

    machines = Cluster(tmp_path, 2, ordered.append, on_wait)
    assert machines.submit(third, [1, 2]).result() == [3, 6]
    assert ordered == [ClusterTaskOrder(number=0, work="third")]
    assert list(tmp_path.iterdir()) == []
