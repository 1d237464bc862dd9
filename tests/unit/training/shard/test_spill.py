"""The spill: rows come back in the order of their keys, rank by rank, from memory or from files, ties as put in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.shard import spill
from training.shard.spill import Spill, Spilled, batch_bytes_for

SCHEMA = pa.schema([("x", pa.int64()), ("text", pa.string())])
# Keys of few values, so that there are ties, in a few of the ranges.
keys = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 3)), max_size=60)


def _spilled(folder, rows, put_rows, run_bytes, keep_bytes) -> Spilled:
    """Rows put in a few at a time, in two parts that are merged."""
    whole = Spilled()
    for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        one = Spill(folder, run_bytes, keep_bytes)
        for start in range(0, len(half), put_rows):
            for group in "ab":
                some = [row for row in half[start : start + put_rows] if row[1] == group]
                table = pa.table([[row[0] for row in some], [f"row {row[0]}" for row in some]], schema=SCHEMA)
                one.put(group, np.array([row[2] for row in some], np.uint64), table)
        whole.merge(one.close())
    return whole


@settings(deadline=None, max_examples=60)
@given(keys, st.integers(1, 9), st.integers(1, 900), st.sampled_from([0, 500, 10**9]), st.integers(1, 7))
def test_any_ranks_come_back_in_order(tmp_path_factory, drawn, put_rows, run_bytes, keep_bytes, step):
    rows = [(n, group, high * 2**60 + low * 2**20) for n, (group, high, low) in enumerate(drawn)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "BATCH_ROWS", 2)
        whole = _spilled(tmp_path_factory.mktemp("spill"), rows, put_rows, run_bytes, keep_bytes)
    assert whole.on_disk == (keep_bytes == 0 and bool(rows)) or keep_bytes == 500
    for group in "ab":
        # Stable: rows of one key stay as they were put in.
        wanted = [n for n, one, _ in sorted(rows, key=lambda row: row[2]) if one == group]
        assert whole.rows(group) == len(wanted)
        found = []
        for start in range(0, len(wanted), step):
            part = whole.part(group, start, min(start + step, len(wanted))) if wanted else None
            table = part.read(lambda one: one, SCHEMA)
            assert table.schema == SCHEMA
            assert table["text"].to_pylist() == [f"row {n}" for n in table["x"].to_pylist()]
            found += table["x"].to_pylist()
        assert found == wanted


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 30))
def test_ranges_cut_between_keys(tmp_path_factory, highs, most_rows):
    one = Spill(tmp_path_factory.mktemp("spill"), 10**6, 10**6)
    keys = np.array([high * 2**60 for high in highs], np.uint64)
    one.put("", keys, pa.table({"x": highs}))
    spilled = one.close()
    ranges = spilled.ranges("", most_rows)
    assert [ranges[0][0], ranges[-1][1]] == [0, len(highs)]
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    ordered = sorted(highs)
    assert all(ordered[stop - 1] != ordered[stop] for _, stop in ranges[:-1])
    largest = max(highs.count(high) for high in highs)
    assert all(stop - start <= most_rows + largest for start, stop in ranges)


def test_little_is_read_for_a_few_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "BATCH_ROWS", 10)
    one = Spill(tmp_path, 20_000)
    rng = np.random.default_rng(0)
    for _ in range(20):
        one.put("a", rng.integers(0, 2**64, 500, dtype=np.uint64), pa.table({"x": range(500)}))
    spilled = one.close()
    part = spilled.part("a", 5_000, 5_100)
    read = sum(one.stop - one.start for one in part.slices)
    files = list(tmp_path.iterdir())
    # 1 % of 1,000 batches, and one more at each end of each run.
    assert len(files) == len(spilled.runs) >= 7
    assert read <= sum(file.stat().st_size for file in files) * (10 + 2 * len(files)) / 1_000


@pytest.mark.parametrize(
    ("all_bytes", "batch_bytes"),
    [(0, 2**18), (2**30, 2**18), (2**32, 2**18), (2**33, 2**17), (2**34, 2**16), (2**40, 2**15)],
)
def test_batches_are_smaller_where_runs_are_many(all_bytes, batch_bytes):
    assert batch_bytes_for(all_bytes, run_bytes=2**26, part_bytes=2**26) == batch_bytes
