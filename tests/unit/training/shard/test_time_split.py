"""Times by rank without sorting, and boundaries that are those of all times sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from training.shard.splitter import cut, selector

SPEC = SplitSpec(time="at", fractions={"train": 0.5, "val": 0.25, "test": 0.25})
times = st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40)


@given(times, st.data())
def test_a_rank_is_found_as_if_all_were_sorted(tmp_path_factory, drawn, data):
    folder = tmp_path_factory.mktemp("times")
    cut_at = data.draw(st.integers(0, len(drawn)))
    for name, part in (("a", drawn[:cut_at]), ("b", drawn[cut_at:])):
        np.array(part, np.int64).tofile(folder / name)
    select = selector([folder / "a", folder / "b"], folder / "all")
    for rank in data.draw(st.lists(st.integers(0, len(drawn) - 1), min_size=1, max_size=3)):
        wanted = sorted(drawn)[rank]
        assert select(rank) == (wanted, sum(one < wanted for one in drawn), drawn.count(wanted))


@given(st.lists(st.integers(0, 12), min_size=4, max_size=24))
@example([0, 1, 1, 2])
def test_boundaries_never_cut_through_equal_times(tmp_path_factory, drawn):
    folder, ordered = tmp_path_factory.mktemp("times"), sorted(drawn)
    np.array(drawn, np.int64).tofile(folder / "a")
    select = selector([folder / "a"], folder / "all")
    places = [round(share * len(drawn)) for share in (0.5, 0.75)]
    if any(ordered[at - 1] == ordered[at] for at in places):
        with pytest.raises(UsageError, match="would be in both"):
            cut(select, len(drawn), SPEC)
    else:
        assert cut(select, len(drawn), SPEC) == [ordered[at] for at in places]
