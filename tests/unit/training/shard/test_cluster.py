"""Pieces of work that are handed over in a folder: the same shards, and errors as ever. (A cluster: integration.)"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import PieceOrder, PieceOutcome
from tests.support.sharding import Shards
from training.shard.cluster import Cluster
from training.shard.piece_worker import do_piece
from training.shard.workers import Workers

TABLES = [pa.table({"id": range(n, n + 500), "x": range(n, n + 500)}) for n in (0, 500, 1000)]


class Elsewhere:
    """Does what is asked for at once, in this process."""

    def __init__(self, folder: Path, at_once: int = 4) -> None:
        folder.mkdir()
        self.cluster, self.asked = Cluster(folder, at_once, self.done), Counter[str]()

    def done(self, order: PieceOrder) -> None:
        self.asked[order.work] += 1
        outcome = PieceOutcome()
        try:
            do_piece(self.cluster.folder, order.piece)
        except UsageError as error:
            outcome = PieceOutcome(error=error.to_json())
        (self.cluster.folder / f"{order.piece}.outcome").write_text(json.dumps(outcome.to_json()))


def third(number: int) -> int:
    if number == 5:
        raise UsageError("five will not do.")
    return number * 3


@pytest.mark.parametrize("split", [{"key": "id"}, {"time": "x", "fractions": {"train": 0.5, "test": 0.5}}])
def test_pieces_done_elsewhere_make_the_same_shards(split: dict[str, Any], tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path / "shared")
    options = {"split": split, "target_size_bytes": 2048}
    here = Shards(tmp_path / "here", TABLES, **options)
    there = Shards(tmp_path / "there", TABLES, cluster=elsewhere.cluster, **options)
    assert there.digests == here.digests
    assert elsewhere.asked["gather"] == len(TABLES)
    assert elsewhere.asked["times"] == (len(TABLES) if "time" in split else 0)
    assert elsewhere.asked["write_shard"] > 1
    assert list(elsewhere.cluster.folder.iterdir()) == []


def test_results_come_in_order_several_to_a_piece(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path / "shared")
    with Workers(4, elsewhere=elsewhere.cluster) as workers:
        assert list(workers.map(third, iter(range(5)), together=2)) == [0, 3, 6, 9, 12]
    assert elsewhere.asked == {"third": 3}


def test_the_first_items_error_is_raised(tmp_path: Path) -> None:
    elsewhere = Elsewhere(tmp_path / "shared")
    found = Workers(4, elsewhere=elsewhere.cluster).map(third, [1, 5, 2])
    assert next(found) == 3
    with pytest.raises(UsageError, match="five will not do"):
        next(found)


def test_a_folder_that_a_worker_does_not_see_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"shards.runner.scratch: this worker does not see .*7.piece"):
        do_piece(tmp_path, 7)
