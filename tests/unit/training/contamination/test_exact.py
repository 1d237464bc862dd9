"""Rows in two sides, and labels that differ, are found, counted and placed as a comparison of all pairs says."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.messages.raw_data import HELD_OUT, SCORED, TRAINED, Side
from tests.support.sealed_rows import compared, sealed
from tests.support.sharding import small_runs
from training.contamination import exact
from training.contamination.exact import copies

USES = {"train": TRAINED, "val": HELD_OUT, "test": SCORED}
rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=12)


def expected(splits: dict[str, list[tuple[int, int]]]):
    overlaps = {}
    for earlier, later in combinations(USES, 2):
        here, there = splits[earlier], splits[later]
        shared = {x for x, _ in here} & {x for x, _ in there}
        if shared:
            labels = {x: {y for one in (here, there) for z, y in one if z == x} for x in shared}
            overlaps[earlier, later] = (
                sum(x in shared for x, _ in here),
                sum(x in shared for x, _ in there),
                sum(len(labels.get(x, ())) > 1 for x, _ in there),
            )
    everything = [row for some in splits.values() for row in some]
    labels = {x: {y for z, y in everything if z == x} for x, _ in everything}
    torn = {x for x, some in labels.items() if len(some) > 1}
    return overlaps, (len(torn), sum(x in torn for x, _ in everything))


@settings(deadline=None, max_examples=60)
@given(st.tuples(rows, rows, rows), st.integers(1, 5), st.booleans())
def test_what_is_found_is_what_all_pairs_say(tmp_path_factory, drawn, shard_rows, spilled):
    root = tmp_path_factory.mktemp("sides")
    splits = dict(zip(USES, drawn, strict=True))
    tables = {name: pa.table({"x": [x for x, _ in one], "y": [y for _, y in one]}) for name, one in splits.items()}
    dataset = sealed(root, "one", tables, shard_rows)
    sides = [Side(name=name, dataset=dataset, split=name, use=use, own=True) for name, use in USES.items()]
    opened = compared(root, sides, ["x", "y"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "CHECKED_ROWS", 3)
        if spilled:
            small_runs(patch, 200)
        shared = exact.find_shared(opened, exact.record(opened, ["x"], ["y"], root), root)
    overlaps, conflicts = expected(splits)
    found = {
        (one.earlier, one.later): (one.earlier_rows, one.later_rows, one.conflicting)
        for one in shared.overlaps(opened.sides)
    }
    assert found == overlaps
    torn = shared.of_labels(opened.sides)
    assert (torn.groups, torn.rows) == conflicts

    def value(place):
        split, _, number = Path(place.shard).stem.partition("-")
        return splits[split][int(number) * shard_rows + place.row]

    for one in shared.overlaps(opened.sides):
        for later, earlier in one.examples:
            assert value(later)[0] == value(earlier)[0]
            assert one.later in later.shard
            assert one.earlier in earlier.shard
    assert len(torn.examples) == torn.groups
    for a, b in torn.examples:
        assert value(a)[0] == value(b)[0]
        assert value(a)[1] != value(b)[1]
    for side in opened.sides:
        later = {x for name, one in splits.items() if USES[name] > side.side.use for x, _ in one}
        mask = copies(opened, side, ["x"], shared.to_drop.get(side.number))
        assert mask.tolist() == [x in later for x, _ in splits[side.side.name]]


def test_rows_of_one_use_are_not_compared(tmp_path: Path) -> None:
    dataset = sealed(tmp_path, "one", {name: pa.table({"x": [1, 2]}) for name in ("train", "test", "hard")})
    uses = {"train": TRAINED, "test": SCORED, "hard": SCORED}
    sides = [Side(name=name, dataset=dataset, split=name, use=use, own=True) for name, use in uses.items()]
    opened = compared(tmp_path, sides, ["x"])
    shared = exact.find_shared(opened, exact.record(opened, ["x"], [], tmp_path), tmp_path)
    found = [(one.earlier, one.later, one.conflicting) for one in shared.overlaps(opened.sides)]
    assert found == [("train", "test", 0), ("train", "hard", 0)]
