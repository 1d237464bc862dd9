"""A time of day that is set while a process works changes no length that it measures."""

from __future__ import annotations

import pytest

from infra.processes.this_process import Clock

DAY_S = 86_400.0


class Times:
    """A machine whose time of day can be set, and whose monotonic time only passes."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1_764_000_000.0, 50.0

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.mark.parametrize("jump_s", [0.0, 3600.0, -3600.0, 365 * DAY_S, -365 * DAY_S])
def test_a_time_of_day_that_is_set_changes_no_length(jump_s: float) -> None:
    times = Times()
    its = Clock(lambda: times.wall, lambda: times.monotonic)
    assert its.now() == 1_764_000_000.0
    times.pass_s(10)
    times.wall += jump_s
    times.pass_s(20)
    assert its.now() == pytest.approx(1_764_000_030.0)
    assert its.at(55.0) == pytest.approx(1_764_000_005.0)
