"""The clock of a process: setting the time of day changes no length of time."""

from __future__ import annotations

import time

import pytest

from infra.processes.this_process import now_s, wall_s


def test_a_time_of_day_that_is_set_changes_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(now_s() - time.time()) < 3600
    before, began, after = now_s(), time.monotonic(), now_s()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= now_s() - before < 3600
    assert before - 1 < wall_s(began) < after + 1
