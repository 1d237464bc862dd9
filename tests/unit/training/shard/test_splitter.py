"""Splits: no key or time on two sides, shares met, and each refusal in one sentence."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from training.shard.spill import Spill
from training.shard.splitter import (
    REQUIRED,
    Splitter,
    cut,
    find_shared,
    in_order,
    judge,
    keys_of,
    note_sides,
    refuse_empty,
    refuse_shared,
)

DAYS = [dt.datetime(2026, 1, 1) + dt.timedelta(days=day) for day in range(10)]


def ranked(times):
    """What `selector` gives, for times in memory."""
    return lambda rank: (int(time := np.sort(times)[rank]), int((times < time).sum()), int((times == time).sum()))


class Assigned:
    """A table's rows assigned in batches of a few rows, each a unit of its own, and judged as a first pass does."""

    def __init__(self, table, spec, required=REQUIRED, sensitive=(), unit_rows=3):
        bounds = None
        pieces = [table.slice(at, unit_rows) for at in range(0, table.num_rows, unit_rows)]
        if spec.time is not None and not spec.boundaries:
            first = Splitter(spec, table.schema)
            times = [first.times(piece, (unit, 0)) for unit, piece in enumerate(pieces)]
            if not first.notes.spoilt:
                bounds = cut(ranked(np.concatenate(times)), table.num_rows, spec, sensitive)
        splitter = Splitter(spec, table.schema, bounds, sensitive)
        first_rows = [unit_rows * unit for unit in range(len(pieces) + 1)]
        with tempfile.TemporaryDirectory() as folder:
            sides = Spill(Path(folder), 100, 0)  # a run holds one or two records
            found = []
            for unit, piece in enumerate(pieces):
                found.append(splitter.assign(piece, (unit, 0)))
                if spec.key is not None and (spec.time or spec.column) and not splitter.notes.spoilt:
                    note_sides(sides, splitter.digests(piece), found[-1], splitter.names, (unit, 0))
            judge(splitter.notes, spec, first_rows, sensitive)
            shared = find_shared(sides.close(), first_rows)
            if shared is not None:
                values = table.select(keys_of(spec)).slice(shared.row, 1).to_pylist()[0]
                raise refuse_shared(shared, spec, values, sensitive)
        of_row = np.concatenate(found)
        self.names = in_order(splitter.names) if spec.column else splitter.names
        self.of_row = np.array([-1 if one < 0 else self.names.index(splitter.names[one]) for one in of_row])
        self.dropped = splitter.notes.dropped
        refuse_empty(self.counts(), required, "shards.split")

    def counts(self):
        found = Counter(self.of_row.tolist())
        return {name: found[index] for index, name in enumerate(self.names)}


def _names(table: pa.Table, unit_rows: int = 3, **split) -> list[str | None]:
    found = Assigned(table, SplitSpec(**split), required=(), unit_rows=unit_rows)
    return [found.names[index] if index >= 0 else None for index in found.of_row]


keys = st.lists(st.tuples(st.integers(0, 30), st.text(max_size=2) | st.none()), min_size=1, max_size=80)
fractions = st.tuples(st.integers(1, 10), st.integers(0, 10), st.integers(0, 10)).map(
    lambda parts: {name: part / sum(parts) for name, part in zip(("train", "val", "test"), parts, strict=True)}
)


@settings(deadline=None)
@given(keys, fractions, st.integers(), st.randoms())
def test_no_key_stands_on_two_sides_whatever_the_other_rows_are(rows, shares, seed, random):
    def table(some):
        return pa.table({"a": [key[0] for key in some], "b": pa.array([key[1] for key in some], pa.string())})

    split = {"key": ["a", "b"], "fractions": shares, "seed": seed}
    sides = dict(zip(rows, _names(table(rows), **split), strict=True))
    assert [sides[key] for key in rows] == _names(table(rows), **split)
    assert all(shares[side] > 0 for side in sides.values())
    some = random.sample(rows, random.randint(1, len(rows)))
    assert _names(table(some), **split) == [sides[key] for key in some]


def test_the_shares_are_met_and_the_seed_counts():
    table = pa.table({"id": range(20_000)})
    names = _names(table, 1000, key="id")
    assert [round(names.count(name) / 20_000, 2) for name in ("train", "val", "test")] == [0.8, 0.1, 0.1]
    assert names != _names(table, 1000, key="id", seed=1)
    assert names == _names(table.cast(pa.schema([("id", pa.int32())])), 1000, key="id")


def test_a_share_that_grows_keeps_its_rows():
    table = pa.table({"id": range(2_000)})
    before = _names(table, 100, key="id", fractions={"train": 0.5, "test": 0.5})
    after = _names(table, 100, key="id", fractions={"train": 0.6, "test": 0.4})
    assert all(late == "train" for early, late in zip(before, after, strict=True) if early == "train")


@pytest.mark.parametrize(
    "times",
    [
        pa.array(DAYS, pa.timestamp("us")),
        pa.array(DAYS, pa.timestamp("ns", "UTC")),
        pa.array([day.date() for day in DAYS]),
        pa.array([day.date() for day in DAYS], pa.date64()),
        pa.array([day.isoformat() for day in DAYS]),
        pa.array([day.isoformat() + "Z" for day in DAYS]),
        pa.array([int(day.timestamp()) for day in DAYS]),
        pa.array([day.timestamp() for day in DAYS]),
        pa.array([day.isoformat() for day in DAYS]).dictionary_encode(),
    ],
    ids=lambda times: str(times.type),
)
def test_the_oldest_train_and_the_newest_test(times):
    order = np.random.RandomState(0).permutation(10)
    table = pa.table({"at": times.take(pa.array(order))})
    expected = np.array(["train"] * 8 + ["val", "test"])[order].tolist()
    assert _names(table, time="at") == expected
    bounds = {"val": "2026-01-09", "test": "2026-01-10T00:00:00"}
    assert _names(table, time="at", boundaries=bounds) == expected
    zoned = {"val": "2026-01-09T02:00:00+02:00", "test": "2026-01-09T23:00:00-01:00"}
    assert _names(table, time="at", boundaries=zoned) == expected


def test_a_gap_before_each_boundary_is_left_out_and_counted():
    table = pa.table({"at": pa.array(DAYS)})
    found = Assigned(table, SplitSpec(time="at", boundaries=BOUNDS, gap_s=86_400))
    assert found.of_row.tolist() == [0, 0, 0, -1, 1, 1, -1, 2, 2, 2]
    assert found.dropped == {"gap": 2}
    assert found.counts() == {"train": 3, "val": 2, "test": 3}


@settings(deadline=None)
@given(
    st.lists(st.integers(-100, 100), min_size=5, max_size=60), st.integers(0, 20), fractions,
)  # fmt: skip
def test_no_time_stands_on_two_sides_and_the_gap_is_kept(seconds, gap, shares):
    table = pa.table({"at": pa.array(seconds, pa.timestamp("s"))})
    try:
        found = Assigned(table, SplitSpec(time="at", fractions=shares, gap_s=gap), required=("train",))
    except UsageError:
        return
    times = np.array(seconds)
    for early in range(len(found.names)):
        for late in range(early + 1, len(found.names)):
            ends, begins = times[found.of_row == early], times[found.of_row == late]
            if len(ends) and len(begins):
                assert (
                    ends.max() + gap < begins.min()
                    or (gap == 0 and ends.max() < begins.min())
                    or (ends.max() < begins.min() - gap)
                )


BOUNDS = {"val": "2026-01-05", "test": "2026-01-08"}
SIDES = [
    # columns, split, the splits that there are, the split of each row
    (
        {"part": ["test", "train", "zeta", "train", "alpha"]}, {"column": "part"}, ["train", "test", "alpha", "zeta"],
        ["test", "train", "zeta", "train", "alpha"],
    ),
    ({"part": [2, 1, 2]}, {"column": "part"}, ["1", "2"], ["2", "1", "2"]),
    # Rows in the gap share keys with nobody.
    (
        {"at": DAYS, "user": [1, 2, 3, 9, 5, 6, 9, 7, 9, 8]},
        {"time": "at", "key": "user", "boundaries": BOUNDS, "gap_s": 86_400}, ["train", "val", "test"],
        [*["train"] * 3, None, *["val"] * 2, None, *["test"] * 3],
    ),
    # A split without a share is none, and a key without a value is a key.
    (
        {"id": pa.nulls(5, pa.int64())}, {"key": "id", "fractions": {"train": 0.5, "val": 0.0, "test": 0.5}},
        ["train", "test"], ["train"] * 5,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "split", "names", "sides"), SIDES)
def test_which_rows_stand_on_which_side(columns, split, names, sides):
    found = Assigned(pa.table(columns), SplitSpec(**split), required=())
    assert found.names == names
    assert [found.names[index] if index >= 0 else None for index in found.of_row] == sides


IN_LISTS = pa.ListArray.from_arrays([0, 1, 2], pa.array([b"a" * 16, b"b" * 16], pa.uuid()))
TIED = pa.array([DAYS[0]] * 9 + [DAYS[1]])
REFUSED = [
    # columns, split, what the sentence says, what the remedy says
    ({"id": [1, 2]}, {"key": "name"}, r"shards.split.key: the data has no column 'name'; it has id", "Name one"),
    ({"id": [1, 2]}, {"time": "at"}, r"shards.split.time: the data has no column 'at'", ""),
    ({"id": [1, 2]}, {"column": "part"}, r"shards.split.column: the data has no column 'part'", ""),
    ({"id": [1]}, {"key": "id"}, r"shards.split leaves no rows for '(train|test)' \(train \d, ", "gets"),
    ({"id": [1, 2]}, {"key": "id", "fractions": {"train": 1.0}}, "leaves no rows for 'test' .train 2.", ""),
    ({"id": [[1], [2]]}, {"key": "id"}, "shards.split.key: 'id' is list<item: int64>, which cannot be a key", ""),
    ({"id": IN_LISTS}, {"key": "id"}, "'id' is list<item: extension<arrow.uuid>>, which cannot be a key", "another"),
    ({"id": IN_LISTS}, {"column": "id"}, "shards.split.column: 'id' is list<.*>, which cannot name a split", "texts"),
    ({"part": ["train", "train"]}, {"column": "part"}, "leaves no rows for 'test' .train 2.", ""),
    ({"part": ["train", None]}, {"column": "part"}, "rows without a value in 'part' .*: 1, the first is row 1", "Fill"),
    ({"part": ["train", "Test"]}, {"column": "part"}, "row 1 names no split in 'part': 'Test' cannot be", "Correct"),
    (
        {"at": TIED}, {"time": "at"},
        "2026-01-01T00:00:00.00:00 would be in both 'train' and 'val', because 9 rows",
        "boundaries, such as {val: 2026-01-01T00:00:00",
    ),
    ({"at": DAYS[:3]}, {"time": "at"}, "leaves no rows for 'test'; there are 3 rows in all", "fractions"),
    ({"at": [*DAYS, None]}, {"time": "at"}, "'at' has rows without a time: 1, the first is row 10", "Fill"),
    ({"at": ["soon"] * 3}, {"time": "at"}, "'at' holds text that is not an ISO 8601 time", "ISO 8601"),
    ({"at": [True, False]}, {"time": "at"}, "'at' is bool, which is not a time", ""),
    ({"at": [1.0, float("inf")]}, {"time": "at"}, "not finite", "Correct or drop"),
    *(
        ({"at": [unit * day for day in range(1_900_000_000, 1_900_000_010)]}, {"time": "at"},
         "'at' has numbers beyond 9223372036854 seconds; they look like micro- or nanoseconds", "timestamps")
        for unit in (10**6, 10**9, -(10**6), 1e6)
    ),
    ({"at": DAYS}, {"time": "at", "boundaries": {"test": "2027-01-01"}}, "leaves no rows for 'test'", ""),
    (
        {"at": DAYS, "user": [1, 2, 3, 4, 5, 6, 7, 8, 2, 9]}, {"time": "at", "key": "user"},
        r"shards.split.key: user = 2 \(row 1\) is in both 'train' and 'val'; keys like this: 1",
        "Split by key alone",
    ),
    (
        {"part": ["train", "test", "test"], "user": ["a", "b", "a"]}, {"column": "part", "key": "user"},
        r"user = 'a' \(row 0\) is in both 'train' and 'test'", "",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "split", "sentence", "remedy"), REFUSED)
def test_what_cannot_be_split_is_refused(columns, split, sentence, remedy):
    with pytest.raises(UsageError, match=sentence) as caught:
        Assigned(pa.table(columns), SplitSpec(**split))
    assert caught.value.exit_code == 2
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("columns", "split", "secret"),
    [
        ({"at": TIED}, {"time": "at"}, "2026-01-01"),
        ({"part": ["train", "Secret"]}, {"column": "part"}, "Secret"),
        ({"part": ["train", "test"], "user": ["Secret"] * 2}, {"column": "part", "key": "user"}, "Secret"),
    ],
)
def test_values_of_sensitive_columns_are_masked(columns, split, secret):
    with pytest.raises(UsageError) as caught:
        Assigned(pa.table(columns), SplitSpec(**split), sensitive=list(columns))
    assert "•••" in caught.value.message
    assert secret not in str(caught.value.to_json())
