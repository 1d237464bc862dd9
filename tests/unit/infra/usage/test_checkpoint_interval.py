"""The checkpoint interval that loses least: beside the best that a search finds, at its limits, and the prior."""

from __future__ import annotations

import math
import random

import pytest

from infra.usage import DAY_S, expected_loss, interval, node_mtbf

CASES = [(stall_s, mtbf_s) for stall_s in (0.01, 1.0, 30.0, 600.0) for mtbf_s in (1800.0, DAY_S, 100 * DAY_S)]


@pytest.mark.parametrize(("stall_s", "mtbf_s"), CASES)
def test_no_other_interval_is_expected_to_lose_much_less(stall_s: float, mtbf_s: float) -> None:
    found = interval(stall_s, mtbf_s)
    least = min(expected_loss(found * 1.01**place, stall_s, mtbf_s, 60) for place in range(-300, 300))
    assert expected_loss(found, stall_s, mtbf_s, 60) <= least * 1.002


@pytest.mark.parametrize(("interval_s", "stall_s", "mtbf_s"), [(600.0, 5.0, 3600.0), (2000.0, 60.0, 3600.0)])
def test_the_expected_loss_is_what_a_simulation_loses(interval_s: float, stall_s: float, mtbf_s: float) -> None:
    draw, worked_s, wall_s, restart_s = random.Random(1), 0.0, 0.0, 120.0
    fails_in = draw.expovariate(1 / mtbf_s)
    for _ in range(40_000):
        while fails_in < interval_s:  # the segment is done again
            wall_s += fails_in
            fails_in = draw.expovariate(1 / mtbf_s)
            while fails_in < restart_s:
                wall_s += fails_in
                fails_in = draw.expovariate(1 / mtbf_s)
            wall_s, fails_in = wall_s + restart_s, fails_in - restart_s
        worked_s, wall_s, fails_in = worked_s + interval_s - stall_s, wall_s + interval_s, fails_in - interval_s
    assert 1 - worked_s / wall_s == pytest.approx(expected_loss(interval_s, stall_s, mtbf_s, restart_s), rel=0.03)


def test_limits_and_the_first_order_which_is_youngs() -> None:
    assert interval(1.0, 100 * DAY_S) == pytest.approx(math.sqrt(2 * 100 * DAY_S), rel=1e-3)
    assert interval(0, DAY_S) == 0
    assert interval(5, math.inf) == math.inf
    assert interval(3 * DAY_S, DAY_S) == 4 * DAY_S  # nothing is left but to work for a mean time between failures
    assert expected_loss(5, 5, DAY_S, 0) == 1.0  # only checkpoints
    assert expected_loss(1e9, 5, 60, 0) == 1.0
    assert expected_loss(100, 5, math.inf, 60) == 0.05
    assert (expected_loss(math.inf, 5, math.inf, 60), expected_loss(math.inf, 5, DAY_S, 60)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("failures", "days", "least", "most"),
    [
        (0, 0, 150, 150),  # the prior
        (0, 1, 150, 200),  # a day says little
        (0, 3000, 2000, 20_000),  # longer than the prior, and finite
        (1, 100, 100, 200),
        (10, 10, 0.9, 1.2),  # a bad pool
        (1000, 10, 0.009, 0.011),
        (0, 1e9, 1e6, 1e10),
    ],
)
def test_a_mean_time_between_failures_is_learnt(failures: int, days: float, least: float, most: float) -> None:
    assert least * DAY_S <= node_mtbf(failures, days * DAY_S) * 1.0001
    assert node_mtbf(failures, days * DAY_S) <= most * DAY_S * 1.0001
