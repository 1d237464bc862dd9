"""Row numbers with and without rows that are left out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from data_contracts.arrow_rows import among, number_before, without_rows


def test_the_rows_that_stay_are_found_again_by_their_numbers() -> None:
    left_out = np.array([0, 1, 4, 5, 9], np.int64)
    batches = pa.table({"x": range(10)}).to_batches(max_chunksize=3)
    left = [without_rows(batch, 3 * at, left_out) for at, batch in enumerate(batches)]
    stayed = [row for batch in left for row in batch.column(0).to_pylist()]
    assert stayed == [2, 3, 6, 7, 8]
    assert [number_before(row, left_out) for row in range(5)] == stayed
    assert number_before(7, np.array([], np.int64)) == 7
    assert among(left_out, 4, 5).tolist() == [0, 1]
