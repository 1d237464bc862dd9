"""Fresh rows that are tallied night by night, and what they say at any time."""

from __future__ import annotations

import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import binomtest

from tasks.evidence.sequential import FIRST_UNITS, Accumulator, decide

Values = NDArray[Any]
ROWS = st.integers(0, 8)


@st.composite
def scores(draw: st.DrawFn) -> tuple[Values, Values, Values]:
    """Both models' scores and the sizes of some units: flags of rows, numbers of rows, or numbers of units."""
    rows, kind = draw(ROWS), draw(st.sampled_from(["flags", "rows", "units"]))
    values = st.sampled_from([0.0, 1.0]) if kind == "flags" else st.floats(-1e60, 1e60)
    sizes = st.integers(1, 10**6) if kind == "units" else st.just(1)
    champion, challenger = (draw(arrays(np.float64, rows, elements=values)) for _ in range(2))
    return champion, challenger, draw(arrays(np.float64, rows, elements=sizes))


def tally(rows: tuple[Values, Values, Values], larger: bool = True) -> Accumulator:
    return Accumulator.of(rows[0], rows[1], larger_is_better=larger, sizes=rows[2])


@settings(deadline=None, max_examples=60)
@given(scores(), scores(), scores())
def test_nights_may_come_in_any_order(a: Any, b: Any, c: Any) -> None:
    first, second, third = tally(a), tally(b), tally(c)
    assert (first + second) + third == third + (second + first) == second + (third + first)
    assert first + Accumulator() == first == Accumulator() + first
    assert (first + second).rows == first.rows + second.rows


@settings(deadline=None, max_examples=60)
@given(scores(), st.randoms(), st.integers(0, 8))
def test_rows_may_come_in_any_order_and_on_any_night(rows: Any, shuffle: Any, at: int) -> None:
    order = list(range(len(rows[0])))
    shuffle.shuffle(order)
    moved = tuple(one[order] for one in rows)
    parts = [tuple(one[piece] for one in moved) for piece in (slice(at), slice(at, None))]
    whole, apart = tally(rows), tally(parts[0]) + tally(parts[1])  # type: ignore[arg-type]
    # A part of numbers may happen to be flags, which are kept as counts: the same sums, of scores from 0 to 1.
    assert apart == whole or (whole.won, whole.lost, whole.tied) == (0, 0, 0) != (apart.won, apart.lost, apart.tied)
    assert apart.rows == whole.rows


@settings(deadline=None, max_examples=60)
@given(scores())
def test_a_tally_is_read_as_it_was_written(rows: Any) -> None:
    assert Accumulator.from_json(json.loads(json.dumps(tally(rows).to_json(), allow_nan=False))) == tally(rows)


@settings(deadline=None, max_examples=60)
@given(scores(), st.floats(-2, 2), st.sampled_from([0.6, 0.95, 0.9999]))
def test_models_exchanged_are_the_opposite(rows: Any, bound: float, confidence: float) -> None:
    found = decide(tally(rows), bound=bound, confidence=confidence)
    other = decide(tally(rows, larger=False), bound=-bound, confidence=confidence)
    opposite = {"better": "worse", "worse": "better", "open": "open"}
    assert other.verdict == opposite[found.verdict]
    assert (other.rows, other.rows_to_go) == (found.rows, found.rows_to_go)
    if found.gain is not None:
        assert other.gain == -found.gain


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 50_000), st.floats(-1.5, 1.5))
def test_the_verdict_is_where_the_interval_lies(won: int, lost: int, tied: int, bound: float) -> None:
    flags = Accumulator(won, lost, tied)
    # The same rows as numbers, because there is one more whose scores are not 0 or 1.
    numbers = flags + Accumulator.of(np.array([0.5]), np.array([0.5]), larger_is_better=True)
    for one in (flags, numbers):
        found = decide(one, bound=bound, confidence=0.95)
        if found.interval is None:
            assert found.verdict == "open"
            continue
        assert found.gain is not None
        assert found.interval.low <= found.gain <= found.interval.high
        assert (found.verdict == "better") == (found.interval.low >= bound and found.gain > bound)
        assert (found.verdict == "worse") == (found.interval.high <= bound and found.gain < bound)
        assert found.interval.confidence == 0.9  # each end holds with 0.95


@pytest.mark.parametrize(
    ("counts", "bound", "verdict"),
    [
        ((0, 0, 0), 0.0, "open"), ((1, 0, 0), 0.0, "open"), ((0, 0, 10**6), 0.0, "open"),
        ((30, 10, 960), 0.0, "better"), ((10, 30, 960), 0.0, "worse"), ((21, 20, 959), 0.0, "open"),
        ((30, 10, 960), 0.02, "open"),
        ((300, 100, 9_600), 0.02, "open"), ((0, 0, 600), -0.01, "better"), ((0, 0, 600), 0.01, "worse"),
        ((0, 600, 0), -1.0, "open"), ((600, 0, 0), 1.0, "open"), ((5, 0, 0), 2.0, "worse"), ((0, 5, 0), -2.0, "better"),
    ],
)  # fmt: skip
def test_counts(counts: tuple[int, int, int], bound: float, verdict: str) -> None:
    assert decide(Accumulator(*counts), bound=bound, confidence=0.95).verdict == verdict


def numbers(gains: Values, reach: float = 1.0) -> Accumulator:
    """Rows with these gains, and one on which both models have a score that is `reach` away."""
    return Accumulator.of(np.append(0 * gains, reach), np.append(gains, reach), larger_is_better=True)


@pytest.mark.parametrize(
    ("gains", "bound", "verdict"),
    [
        (np.full(2_000, 0.01), 0.0, "better"), (np.full(2_000, -0.01), 0.0, "worse"), (np.full(40, 0.9), 0.0, "open"),
        (np.full(2_000, 0.01), 0.02, "worse"), (np.zeros(10**4), 0.0, "open"), (np.zeros(10**4), -0.001, "better"),
        (np.zeros(1_000), -0.001, "open"), (np.tile([1.0, -1.0], 5_000), 0.0, "open"), (np.array([0.5]), -9.0, "open"),
    ],
)  # fmt: skip
def test_numbers(gains: Values, bound: float, verdict: str) -> None:
    assert decide(numbers(gains), bound=bound, confidence=0.95).verdict == verdict


def test_a_gain_of_exactly_the_bound_stays_open() -> None:
    exact = Accumulator.of(np.zeros(10_000), np.full(10_000, 0.1), larger_is_better=True)
    assert exact.sums.gains / exact.rows == decide(exact, bound=0.1, confidence=0.95).gain == 0.1
    found = decide(exact, bound=0.1, confidence=0.51)
    assert (found.verdict, found.rows_to_go) == ("open", None)


def test_equal_scores_on_every_row_tell_no_size_and_decide_nothing() -> None:
    found = decide(Accumulator.of(np.full(10**4, 0.3), np.full(10**4, 0.3), larger_is_better=False), confidence=0.95)
    assert (found.verdict, found.gain, found.interval, found.rows_to_go) == ("open", 0.0, None, None)


def test_the_first_units_of_numbers_decide_nothing() -> None:
    gains = np.full(FIRST_UNITS - 2, 0.9)
    assert decide(numbers(gains), confidence=0.95).verdict == "open"
    assert decide(numbers(np.append(gains, 0.9)), confidence=0.95).verdict == "better"
    assert decide(numbers(gains), confidence=0.95).rows_to_go == 1


def test_losses_as_large_as_scores_that_were_seen_may_be_missing_by_chance() -> None:
    gains = np.random.default_rng(1).normal(0.01, 0.003, 400)
    assert decide(numbers(gains, reach=0.05), confidence=0.95).verdict == "better"
    assert decide(numbers(gains, reach=1.0), confidence=0.95).verdict == "open"
    assert decide(numbers(np.tile(gains, 3), reach=1.0), confidence=0.95).verdict == "better"


def test_units_count_and_not_their_rows() -> None:
    draw = np.random.default_rng(1)
    champion, challenger = draw.normal(0.0, 1.0, 1_000), draw.normal(0.2, 1.0, 1_000)
    rows = Accumulator.of(champion, challenger, larger_is_better=True)
    units = Accumulator.of(50 * champion, 50 * challenger, larger_is_better=True, sizes=np.full(1_000, 50))
    one, other = decide(rows, confidence=0.95), decide(units, confidence=0.95)
    assert (other.verdict, other.rows) == (one.verdict, 50_000)
    assert one.gain == pytest.approx(other.gain)
    assert one.interval is not None
    assert other.interval is not None
    assert (other.interval.low, other.interval.high) == pytest.approx((one.interval.low, one.interval.high))


@pytest.mark.parametrize("one", [Accumulator(30, 22, 900), numbers(np.random.default_rng(2).normal(0.02, 0.5, 1_500))])
@pytest.mark.parametrize("bound", [0.0, -0.005, 0.02])
def test_rows_to_go_are_about_as_many_as_decide(one: Accumulator, bound: float) -> None:
    found = decide(one, bound=bound, confidence=0.95)
    assert found.verdict == "open"
    assert found.rows_to_go is not None
    times = math.ceil(1 + 1.01 * found.rows_to_go / one.rows)
    many, fewer = one, one
    for _ in range(times - 1):
        many = many + one
    for _ in range(int(1 + 0.9 * found.rows_to_go / one.rows) - 1):
        fewer = fewer + one
    assert decide(many, bound=bound, confidence=0.95).verdict != "open"
    assert decide(many, bound=bound, confidence=0.95).rows_to_go == 0
    assert decide(fewer, bound=bound, confidence=0.95).verdict == "open"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e61])
def test_a_score_that_is_not_finite_is_refused_with_its_row(bad: float) -> None:
    good, worse = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, bad])
    with pytest.raises(ValueError, match="the challenger's score of row 2 is"):
        Accumulator.of(good, worse, larger_is_better=True)
    with pytest.raises(ValueError, match="the champion's score of row 2 is"):
        Accumulator.of(worse, good, larger_is_better=True)


@pytest.mark.parametrize(
    ("champion", "challenger", "sizes", "words"),
    [
        ([1.0], [1.0, 2.0], None, "the champion has 1 scores and the challenger 2"),
        ([[1.0]], [[1.0]], None, "one score for each row"),
        ([1.0], [2.0], [0], "numbers of rows"),
        ([1.0], [2.0], [1.5], "numbers of rows"),
        ([1.0], [2.0], [math.nan], "numbers of rows"),
        ([1.0], [2.0], [1, 1], "numbers of rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused(champion: Any, challenger: Any, sizes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Accumulator.of(
            np.array(champion),
            np.array(challenger),
            larger_is_better=True,
            sizes=None if sizes is None else np.array(sizes),
        )


def test_flags_of_any_type_are_counted_and_no_rows_are_nothing() -> None:
    flags = np.array([True, False, False]), np.array([0, 1, 0])
    assert (
        Accumulator.of(*flags, larger_is_better=True)
        == Accumulator(1, 1, 1)
        == Accumulator.of(*flags, larger_is_better=False)
    )
    assert Accumulator.of(np.array([]), np.array([]), larger_is_better=True) == Accumulator()


def test_a_half_among_flags_makes_them_numbers() -> None:
    night = Accumulator.of(np.array([0.0, 1.0]), np.array([0.5, 1.0]), larger_is_better=True)
    assert (Accumulator(100, 0, 900) + night).rows == 1_002
    assert decide(Accumulator(100, 0, 900) + night, confidence=0.95).verdict == "better"


@pytest.mark.parametrize("bound", [math.nan, math.inf, -math.inf])
def test_a_bound_that_is_not_a_number_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="bound"):
        decide(Accumulator(), bound=bound, confidence=0.95)


@pytest.mark.parametrize("confidence", [0.5, 1.0, 0.0, -1.0, math.nan])
def test_a_confidence_that_promises_nothing_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        decide(Accumulator(), confidence=confidence)


@pytest.mark.parametrize(
    "foreign",
    [
        None, 3, "x", [], {}, {"won": 1, "lost": 2, "tied": 3},
        {**Accumulator(1, 2, 3).to_json(), "more": 0}, {**Accumulator(1, 2, 3).to_json(), "won": -1},
        {**Accumulator(1, 2, 3).to_json(), "won": 1.0}, {**Accumulator(1, 2, 3).to_json(), "won": math.nan},
        {**Accumulator(1, 2, 3).to_json(), "tied": 10**16}, {**Accumulator(1, 2, 3).to_json(), "lost": True},
        {**Accumulator(1, 2, 3).to_json(), "sums": None}, {**Accumulator(1, 2, 3).to_json(), "sums": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_foreign_tally_is_refused_in_one_sentence(foreign: object) -> None:
    with pytest.raises(ValueError, match="^the tally cannot be read: [^\n]+$"):
        Accumulator.from_json(foreign)


def sample(settings_: str) -> Callable[[Any, int, int], dict[str, Any]]:
    found = runpy.run_path(str(Path(__file__).parents[4] / "benchmarks" / "canary.py"))
    chosen = [one for one in found["FALSE"] if settings_ in type(one).__name__]
    return lambda at, seed, canaries: found["false_decisions"](chosen[at], seed, canaries)


@pytest.mark.parametrize(("kind", "at"), [("Counts", 0), ("Counts", 9), ("Numbers", 7), ("Numbers", 11)])
def test_canaries_that_are_looked_at_each_night_for_a_year_are_seldom_decided_falsely(kind: str, at: int) -> None:
    canaries = 300
    found = sample(kind)(at, at, canaries)
    for share in (found["false_better"], found["false_worse"]):
        assert binomtest(round(share * canaries), canaries, 0.05, alternative="greater").pvalue > 0.01
    assert found["z_test_better"] > 0.3  # the same looks at a test that may be looked at once
