"""Rows that the contract set aside reach no shard, on any number of processes, and messages number rows as it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.errors import UsageError
from infra.contract.quarantine import LeftOut
from tests.support.sharding import Shards
from training.shard import units

FIRST, SECOND = 400, 300


def tables(**columns: Any) -> list[pa.Table]:
    whole = pa.table({"id": range(FIRST + SECOND), "t": [str(n) for n in range(FIRST + SECOND)], **columns})
    return [whole.slice(0, FIRST), whole.slice(FIRST)]


def gone(*rows: int) -> LeftOut:
    """Rows by their numbers over both files."""
    numbers = np.array(sorted(rows), np.int64)
    files = (numbers >= FIRST).astype(np.int64)
    return LeftOut(numbers, files, numbers - FIRST * files)


def ids(shards: Shards) -> list[int]:
    return sorted(row for split in shards.sharded.splits for row in shards.read(split)["id"].to_pylist())


def test_exactly_these_rows_are_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    rows = (0, 63, 64, 399, 400, 455, 699, *range(128, 192))  # ends of files and row groups, and a whole row group
    left = Shards(tmp_path / "one", tables(), row_group_rows=64, left_out=lambda most_rows: gone(*rows))
    assert ids(left) == [row for row in range(FIRST + SECOND) if row not in rows]
    assert left.sharded.dropped_rows == {"quarantined": len(rows)}
    whole = Shards(tmp_path / "whole", tables(), row_group_rows=64)
    assert whole.sharded.dropped_rows == {}
    for split in ("train", "val", "test"):  # the key alone decides the split
        assert set(left.read(split)["id"].to_pylist()) <= set(whole.read(split)["id"].to_pylist())


def test_a_time_that_only_such_rows_lack_is_missed_by_nobody(tmp_path: Path) -> None:
    days = pa.array([None if n in (3, 500) else n for n in range(FIRST + SECOND)]).cast(pa.timestamp("s"))
    split = {"time": "when", "fractions": {"train": 0.5, "test": 0.5}}
    with pytest.raises(UsageError, match="rows without a time: 2, the first is row 3"):
        Shards(tmp_path / "all", tables(when=days), split=split)
    left = Shards(tmp_path / "left", tables(when=days), split=split, left_out=lambda most_rows: gone(3, 500))
    assert left.rows("train") == left.rows("test") == (FIRST + SECOND - 2) // 2


def test_messages_give_rows_the_numbers_that_they_have_in_the_data(tmp_path: Path) -> None:
    names = ["train" if n % 2 else "test" for n in range(FIRST + SECOND)]
    names[450] = "no name/"
    with pytest.raises(UsageError, match="row 450 names no split"):
        Shards(
            tmp_path / "a",
            tables(fold=names),
            split={"column": "fold"},
            left_out=lambda most_rows: gone(1, 2, 300, 460),
        )
    names[450] = "train"
    twins = [*range(FIRST + SECOND - 1), 600]  # row 699 is in train, 600 in test
    split = {"column": "fold", "key": "twin"}
    with pytest.raises(UsageError, match=r"row 600\) is in both"):
        Shards(tmp_path / "b", tables(fold=names, twin=twins), split=split, left_out=lambda most_rows: gone(1, 2, 300))
