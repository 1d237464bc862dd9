"""One piece of work behind the steps at a time, and what fails there is raised in front."""

from __future__ import annotations

import threading

from training.checkpoint.saver import BackgroundWork


def test_work_runs_behind_and_the_next_waits_for_it() -> None:
    background, may_end, ends = BackgroundWork(), threading.Event(), []

    def slow() -> None:
        may_end.wait()
        ends.append("first")

    background.start(slow)
    assert ends == []
    opener = threading.Timer(0.05, may_end.set)
    opener.start()
    background.start(lambda: ends.append("second"))
    assert ends[0] == "first"
    background.wait()
    assert ends == ["first", "second"]
    assert not background.failed
