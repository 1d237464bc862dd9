"""Burn rates over two windows: as the SRE workbook has them for many events, and over days for nightly runs."""

from __future__ import annotations

import pytest

from tasks.slo import BUSY, DAY_S, HOUR_S, NIGHTLY, WINDOW_S, Point, alerts, burn

NOW = 1_000 * DAY_S


def nights(bad: set[int], *, number: int = 28, at: float = 3 * HOUR_S) -> list[Point]:
    """One run in each night, the newest `at` seconds ago; `bad`: nights ago, from 0."""
    return [Point(NOW - at - night * DAY_S, float(night not in bad), 1.0) for night in range(number)]


def minutely(bad_minutes: int) -> list[Point]:
    """An event in each minute of 28 days; the last ones are bad."""
    return [Point(NOW - minute * 60, float(minute >= bad_minutes), 1.0) for minute in range(int(WINDOW_S / 60))]


def test_the_rates_of_the_workbook_follow_from_its_shares() -> None:
    """Chapter 5 has 14.4, 6 and 1 for 30 days; these are 28."""
    assert [round(pair.rate * 30 / 28, 2) for pair in BUSY] == [14.4, 6.0, 1.0]
    assert [round(pair.rate, 2) for pair in NIGHTLY] == [7.0, 4.67, 1.0]


@pytest.mark.parametrize(
    ("points", "raised"),
    [
        ([], []),
        (nights(set()), []),
        (nights({0}), []),  # one failure alone is for its owner
        (nights({0, 1}), ["page", "ticket"]),
        (nights({1, 2}), []),  # it works again
        (nights({9, 10, 11}), []),
        (nights({0, 1}, at=20 * HOUR_S), ["page", "ticket"]),  # no run since: still as bad as the last one
        (nights({0, 1, 2}, number=3), ["page", "ticket"]),
        (minutely(0), []),
        (minutely(3), []),
        (minutely(60), ["page"]),
        ([Point(NOW + 60, 0.0, 1.0)] * 5, []),  # of a clock that is ahead
        ([Point(NOW - WINDOW_S - 60, 0.0, 1.0)] * 5, []),
    ],
)
def test_alerts(points: list[Point], raised: list[str]) -> None:
    assert [one.severity for one in alerts(points, 0.95, NOW)] == raised
    assert alerts(points[::-1], 0.95, NOW) == alerts(points, 0.95, NOW)


def test_a_short_outage_that_is_over_pages_nobody() -> None:
    """Bad from two hours ago to an hour and a half ago: the long window still burns, the short one does not."""
    points = [Point(point.at, float(not 90 * 60 <= NOW - point.at <= 180 * 60), 1.0) for point in minutely(0)]
    assert burn(points, 0.95, NOW - 6 * HOUR_S, NOW) == pytest.approx(91 / 360 / 0.05)
    assert [one.severity for one in alerts(points, 0.95, NOW)] == []


def test_a_burn_rate_without_events_is_unknown() -> None:
    assert (burn([], 0.9, 0, 10), burn([Point(5, 0.0, 0.0)], 0.9, 0, 10)) == (None, None)
    assert burn([Point(5, 9.0, 10.0)], 0.9, 0, 10) == pytest.approx(1.0)
    assert burn([Point(5, 9.0, 10.0)], 0.9, 5, 10) is None
