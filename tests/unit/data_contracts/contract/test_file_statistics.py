"""Groups of parts add up to what the parts add up to, and a file that comes or goes changes only its own group."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.canonical import canonical, digest
from data_contracts.contract.file_statistics import (
    LARGEST,
    FileStatistics,
    StatisticsGroup,
    StatisticsSum,
    cut,
    grouped,
)
from data_contracts.profile.profile import profile_of

NAMES = [f"{digest(number)[:40]}.json" for number in range(3_000)]


def groups(names: Sequence[str]) -> dict[str, list[str]]:
    return {name: [names[at] for at in positions] for positions, name in cut(names) if name is not None}


def test_the_groups_and_what_may_still_grow_are_all_names_in_order() -> None:
    assert [at for positions, _ in cut(NAMES) for at in positions] == list(range(len(NAMES)))
    assert all(name is not None or len(positions) == 1 for positions, name in list(cut(NAMES))[:-1])
    assert max(map(len, groups(NAMES).values())) <= LARGEST
    assert list(cut([])) == []


@pytest.mark.parametrize(
    ("changed", "others"),
    [
        (NAMES[100:], 2),  # a window that moved
        (NAMES[:2_990], 1),
        ([*NAMES, f"{digest('new')[:40]}.json"], 1),
        ([*NAMES[:1_500], *NAMES[1_501:]], 1),
    ],
)
def test_a_file_that_comes_or_goes_changes_only_its_group(changed: list[str], others: int) -> None:
    before, after = groups(NAMES), groups(changed)
    assert len(after.keys() - before.keys()) <= others
    assert len(before) > 20


def test_a_run_of_names_that_end_no_group_is_cut_at_the_largest_size() -> None:
    names = [f"{64 * number + 1:08x}.json" for number in range(LARGEST + 9)]
    assert [(len(positions), name is None) for positions, name in cut(names)] == [(LARGEST, False), (9, True)]


def part(table: pa.Table, **values: int | float | None) -> FileStatistics:
    return FileStatistics(
        own="ff",
        text_from={},
        row_groups=[(table.num_rows, 8)],
        schema_of_all="00",
        rows=table.num_rows,
        values=values,
        profile=profile_of(table.to_batches(), table.schema, ["secret"], 1),
    )


def parts(seed: int) -> list[FileStatistics]:
    """Parts with and without rows, with columns that have few or many different values, or none."""
    draw = np.random.default_rng(seed)
    made = []
    for number in range(9):
        rows = int(draw.choice([0, 1, 700, 3_000]))
        words = [f"word {one}" for one in draw.integers(0, 4_000 if number % 2 else 3, rows)]
        table = pa.table(
            {
                "real": pa.array(draw.normal(size=rows) * 10.0**number, mask=draw.random(rows) < 0.1),
                "whole": draw.integers(0, 300, rows),
                "word": pa.array(words, pa.string()),
                "nothing": pa.nulls(rows, pa.int64()),
                "secret": draw.random(rows),
            }
        )
        made.append(part(table, rows=rows, total=float(draw.normal())))
    return made


@pytest.mark.parametrize("seed", range(4))
def test_groups_add_up_to_the_bytes_that_their_parts_add_up_to(seed: int) -> None:
    every, choose = parts(seed), random.Random(seed)
    alone, together = StatisticsSum(), StatisticsSum()
    for one in every:
        alone.add(one)
    waiting = choose.sample(every, len(every))
    while waiting:
        count = choose.randint(1, 4)
        some, waiting = waiting[:count], waiting[count:]
        group = grouped(some)
        together.add(StatisticsGroup.from_json(group.to_json()))
    first, second = alone.profile(), together.profile()
    assert canonical(first.to_json()) == canonical(second.to_json())
    assert (alone.rows, sorted(map(str, alone.values["total"]))) == (
        together.rows,
        sorted(map(str, together.values["total"])),
    )


def test_a_measure_that_a_file_lacks_is_not_known_of_all() -> None:
    table, total = pa.table({"x": [1.0]}), StatisticsSum()
    for one in (part(table, a=1, b=2.0), part(table, b=None), part(table, a=3, b=4.0)):
        total.add(one)
    assert total.values == {"b": [2.0, None, 4.0]}
    assert StatisticsSum().profile() is None


def test_moments_that_overflow_together_are_not_lost_in_a_group() -> None:
    near, far = part(pa.table({"x": [0.0] * 9})), part(pa.table({"x": [4e154] * 2}))
    assert far.profile.columns[0].moments is not None
    assert grouped([far, near]) is None
    assert grouped([near, near]) is not None
