"""Rows whose digest is in a list are marked, also where digests begin with the same half."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.messages.raw_data import TRAINED, Side
from tests.support.sealed_rows import compared, sealed
from training.contamination import exact


def test_digests_that_begin_alike_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = sealed(tmp_path, "one", {"train": pa.table({"x": [0, 1, 2, 3, 4, 5]})})
    opened = compared(tmp_path, [Side(name="train", dataset=dataset, split="train", use=TRAINED, own=True)], ["x"])

    def digests(columns: list[pa.ChunkedArray]) -> np.ndarray:
        x = columns[0].to_numpy().astype(np.uint64)
        return np.stack([x // np.uint64(3), x], axis=1)

    monkeypatch.setattr(exact, "row_digests", digests)
    path = tmp_path / "digests"
    np.array([[0, 0], [0, 2], [1, 5], [7, 1]], np.uint64).tofile(path)
    assert exact.copies(opened, opened.sides[0], ["x"], path).tolist() == [True, False, True, False, False, True]
    assert not exact.copies(opened, opened.sides[0], ["x"], None).any()
