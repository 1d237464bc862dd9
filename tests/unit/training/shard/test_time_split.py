"""Times by rank without sorting, and boundaries that are those of all times sorted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from training.shard.splitter import cut, select, selector

SPEC = SplitSpec(time="at", fractions={"train": 0.5, "val": 0.25, "test": 0.25})
near = st.integers(-3, 3)
times = st.lists(near | near.map(lambda n: n + 2**40) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40)


@given(times, st.data())
def test_a_rank_is_found_as_if_all_were_sorted(drawn, data):
    rank = data.draw(st.integers(0, len(drawn) - 1))
    cut_at = data.draw(st.integers(0, len(drawn)))
    pieces = [np.array(part, np.int64) for part in (drawn[:cut_at], drawn[cut_at:])]
    wanted = sorted(drawn)[rank]
    found = select(lambda: pieces, rank)
    assert found == (wanted, sum(one < wanted for one in drawn), drawn.count(wanted))


@given(st.lists(st.integers(0, 12), min_size=4, max_size=24))
@example([0, 1, 1, 2])
def test_boundaries_never_cut_through_equal_times(drawn):
    def ranked(rank):
        return select(lambda: [np.array(drawn, np.int64)], rank)

    ordered = sorted(drawn)
    places = [round(share * len(drawn)) for share in (0.5, 0.75)]
    if any(ordered[at - 1] == ordered[at] for at in places):
        with pytest.raises(UsageError, match="would be in both"):
            cut(ranked, len(drawn), SPEC)
    else:
        assert cut(ranked, len(drawn), SPEC) == [ordered[at] for at in places]


def test_times_may_lie_in_files(tmp_path: Path):
    for number, values in enumerate(([5, -1], [], [3])):
        np.array(values, np.int64).tofile(tmp_path / str(number))
    select_in = selector([tmp_path / str(number) for number in range(3)])
    assert [select_in(rank)[0] for rank in range(3)] == [-1, 3, 5]
