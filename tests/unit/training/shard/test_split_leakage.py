"""Keys on two sides are found, named and counted as if all rows were looked at together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.shard import splitter
from training.shard.spill import Spill
from training.shard.splitter import Shared, find_shared, note_sides

NAMES = ["train", "val", "test"]
rows = st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 2)), min_size=1, max_size=50)


def _expected(drawn) -> Shared | None:
    last = {key: split for key, split in drawn if split >= 0}
    shared = [
        (row, split, last[key], key) for row, (key, split) in enumerate(drawn) if split not in (-1, last.get(key))
    ]
    if not shared:
        return None
    row, here, there, _ = shared[0]
    return Shared(row, NAMES[here], NAMES[there], len({key for *_, key in shared}))


@settings(deadline=None)
@given(rows, st.integers(1, 20), st.integers(1, 5), st.booleans())
def test_what_is_found_is_what_all_rows_together_say(tmp_path_factory, drawn, unit_rows, batch_rows, kept):
    noted = Spill(tmp_path_factory.mktemp("sides"), 150, 10**6 if kept else 0)
    for start in range(0, len(drawn), unit_rows):
        unit = drawn[start : start + unit_rows]
        for at in range(0, len(unit), batch_rows):
            batch = unit[at : at + batch_rows]
            # Keys that share the half by which they are sorted are told apart by the other.
            digests = np.array([[(key // 2) << 60, key] for key, _ in batch], np.uint64)
            splits = np.array([split for _, split in batch], np.int16)
            note_sides(noted, digests, splits, NAMES, (start // unit_rows, at))
    first_rows = list(range(0, len(drawn) + unit_rows, unit_rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitter, "CHECKED_ROWS", 3)
        assert find_shared(noted.close(), first_rows) == _expected(drawn)
