"""Sets of rows by what is in them: the same rows have one name, and a share is measured, or rounded up."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from infra.records.evaluations import SAMPLE, TestRows

RNG = np.random.default_rng(7)
POOL = np.unique(RNG.integers(0, 2**64, 220_000, dtype=np.uint64))
RNG.shuffle(POOL)


def rows(start: int, stop: int) -> TestRows:
    return TestRows.of(POOL[start:stop])


def test_order_and_repetition_change_nothing_and_what_is_written_is_read() -> None:
    few = POOL[:100]
    again = np.concatenate([few[::-1], few[:7]])
    assert TestRows.of(again).id == TestRows.of(few).id
    assert TestRows.of(few[1:]).id != TestRows.of(few).id
    big = rows(0, 20_000)
    assert len(big.to_bytes()) == 8 * SAMPLE
    assert TestRows.from_bytes(big.to_bytes()).id == big.id
    assert TestRows.from_bytes(b"").id == TestRows.of(POOL[:0]).id


@pytest.mark.parametrize(
    ("mine", "other", "share", "within"),
    [
        ((0, 1000), (500, 5000), 0.5, 0),  # both whole: exact
        ((0, 1000), (1000, 2000), 0.0, 0),
        ((0, 100_000), (50_000, 150_000), 0.5, 0.03),
        ((0, 100_000), (100_000, 200_000), 0.0, 0),
        ((0, 100_000), (0, 1000), 0.01, 0.005),  # a superset by share
        ((0, 2000), (0, 100_000), 1.0, 0),  # a subset of a sampled set, in full
        ((1, 100_000), (0, 100_000), 1.0, 0),  # one row dropped
        ((0, 3), (0, 200_000), 1.0, 0),  # so small that perhaps no row of it can be compared
        ((0, 0), (0, 1000), 0.0, 0),
        ((0, 1000), (0, 0), 0.0, 0),
    ],
)
def test_shares(mine: tuple[int, int], other: tuple[int, int], share: float, within: float) -> None:
    assert rows(*mine).covered_by(rows(*other)) == pytest.approx(share, abs=within + 1e-12)


def test_a_share_that_few_rows_decide_is_rounded_up() -> None:
    share = rows(200_000, 200_500).covered_by(rows(0, 200_000))  # disjoint; about 20 rows can be compared
    assert 1 / 65 < share < 1 / 5


@pytest.mark.parametrize(
    ("repeated", "beside", "share"),
    [
        (POOL[0], POOL[6000:7000], 0.9),  # an exposed row, beside 1,000 fresh ones
        (POOL[5000], POOL[:1000], 0.999),  # a fresh row, beside 1,000 exposed ones
    ],
)
def test_neither_repetition_hides_an_exposure(repeated: np.uint64, beside: NDArray[np.uint64], share: float) -> None:
    mine = TestRows.of(np.concatenate([np.repeat(repeated, 9000), beside]))
    assert mine.covered_by(rows(0, 1000)) == pytest.approx(share, abs=0.0005)


def test_one_digest_of_all_rows_shares_everything_or_nothing() -> None:
    one, other = TestRows.of_digest("ab" * 32), TestRows.of_digest("cd" * 32)
    assert one.covered_by(TestRows.of_digest("ab" * 32)) == 1
    assert one.covered_by(other) == 0
    assert one.id != other.id
