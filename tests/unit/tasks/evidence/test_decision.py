"""Three verdicts, from the same scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evidence.decision import NOTHING, GateQuestion, Spent, decide, holm, level
from tasks.evidence.significance import PairedCounts


def question(won: int, lost: int, bound: float = 0.0, spent: Spent = NOTHING, rows: int = 1_000) -> GateQuestion:
    return GateQuestion(PairedCounts(won, lost, rows), PairedCounts(lost, won, rows), bound, 0.95, spent)


@pytest.mark.parametrize(
    ("won", "lost", "bound", "spent", "verdict"),
    [
        # won, lost, bound, spent, verdict
        (40, 10, 0.0, NOTHING, "better"),
        (10, 40, 0.0, NOTHING, "worse"),
        (30, 25, 0.0, NOTHING, "insufficient"),
        (0, 0, 0.0, NOTHING, "insufficient"),  # equal on every row
        (0, 0, -0.01, NOTHING, "better"),  # and so not worse by more than a margin
        (20, 25, -0.02, NOTHING, "better"),
        (10, 40, -0.02, NOTHING, "insufficient"),
        (10, 60, -0.02, NOTHING, "worse"),
        (40, 10, 0.05, NOTHING, "worse"),  # it gains 0.03, and more than 0.05 was asked for
        (40, 10, 0.0, Spent(100), "insufficient"),  # the same scores on rows that have decided often
        (40, 10, 0.0, Spent(4, 2), "better"),
        (1_000, 0, 0.0, Spent(100_000, 5_000), "insufficient"),  # nothing shows it any more, though p is 0
    ],
)
def test_verdict(won: int, lost: int, bound: float, spent: Spent, verdict: str) -> None:
    [decision] = decide([question(won, lost, bound, spent)])
    assert decision.verdict == verdict
    assert decision.interval.low <= decision.gain <= decision.interval.high


def test_as_many_fresh_rows_as_are_asked_for_show_the_gain() -> None:
    [decision] = decide([question(30, 20)])
    assert decision.verdict == "insufficient"
    times = decision.rows_needed / 1_000
    draw = np.random.default_rng(0)
    won, lost = draw.poisson(30 * times, 400), draw.poisson(20 * times, 400)
    met = [
        PairedCounts(int(one), int(other), decision.rows_needed).p_value() <= level(0.05)
        for one, other in zip(won, lost, strict=True)
    ]
    assert 0.7 < np.mean(met) < 0.9


def test_no_number_of_rows_shows_a_gain_that_is_not_there() -> None:
    [decision] = decide([question(20, 25)])
    assert (decision.verdict, decision.rows_needed) == ("insufficient", None)


def test_worse_is_corrected_for_the_number_of_gates() -> None:
    alone = decide([question(15, 30)])
    among = decide([question(15, 30), *[question(20, 20)] * 9])
    assert [alone[0].verdict, among[0].verdict] == ["worse", "insufficient"]
    # The best of them is not asked for more: all gates must be met.
    assert decide([question(40, 10), *[question(20, 20)] * 9])[0].verdict == "better"


def test_holm_of_a_published_example() -> None:
    # Holm (1979) by hand: 0.01 x 4, 0.02 x 3, 0.03 x 2, never below one before.
    assert (holm([0.02, 0.01, 0.9, 0.03]), holm([])) == (pytest.approx([0.06, 0.04, 0.9, 0.06]), [])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_is_between_the_p_value_and_bonferroni(p_values: list[float]) -> None:
    for one, corrected in zip(p_values, holm(p_values), strict=True):
        assert one <= corrected <= min(1.0, one * len(p_values)) + 1e-12
