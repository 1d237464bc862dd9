"""One piece of work behind the steps at a time, and what fails there is raised in front."""

from __future__ import annotations

import threading

import pytest

from training.checkpoint.behind import Behind


def test_work_runs_behind_and_the_next_waits_for_it() -> None:
    behind, may_end, ends = Behind(), threading.Event(), []

    def slow() -> None:
        may_end.wait()
        ends.append("first")

    behind.start(slow)
    assert ends == []
    opener = threading.Timer(0.05, may_end.set)
    opener.start()
    behind.start(lambda: ends.append("second"))
    assert ends[0] == "first"
    behind.wait()
    assert ends == ["first", "second"]
    assert not behind.failed


def test_what_fails_behind_is_raised_by_whoever_waits_or_starts_next() -> None:
    behind = Behind()

    def fails() -> None:
        raise OSError("no room")

    behind.start(fails)
    with pytest.raises(OSError, match="no room"):
        behind.wait()
    assert behind.failed
    with pytest.raises(OSError, match="no room"):
        behind.start(lambda: None)
