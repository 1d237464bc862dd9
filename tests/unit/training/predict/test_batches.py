"""Batches are the same wherever they begin and however the rows come, and each names its rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from training.predict import batches
from training.predict.batches import Batches

ROWS = 23


class Raw:
    """Rows 0 to ROWS - 1, cut at the ends of blocks as `RawRows.batches` cuts them."""

    schema = pa.schema([("x", pa.int64())])

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once

    def batches(self, first: int, block: int) -> Any:
        while first < ROWS:
            end = min(first + self._at_once, ROWS, first + block - first % block)
            yield first, pa.RecordBatch.from_pydict({"x": list(range(first, end))})
            first = end


class Features:
    def rows(self, at: int, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch])

    def batches(self, at: int, rows: pa.Table, size: int) -> Any:
        return iter(torch.tensor(rows.column("x").to_pylist()).split(size))


@pytest.mark.parametrize("first", [0, 8, 16])
@pytest.mark.parametrize("at_once", [3, 8])
@pytest.mark.parametrize("keep", [["x"], []])
def test_each_batch_has_its_rows(first: int, at_once: int, keep: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "block_rows", lambda size: 8)
    request: Any = SimpleNamespace(keep=keep, batch_size=4)
    raw: Any = Raw(at_once)
    features: Any = Features()
    made = Batches(raw, features, request, first)
    expected = [list(range(at, min(at + 4, ROWS))) for at in range(first, ROWS, 4)]
    assert [batch.tolist() for batch in made] == expected
    assert [(rows.first, rows.count) for rows in made.waiting] == [(values[0], len(values)) for values in expected]
    for rows, values in zip(made.waiting, expected, strict=True):
        assert {name: column.to_pylist() for name, column in rows.kept.items()} == ({"x": values} if keep else {})
