"""What tests of gangs share: the mark of all that a test starts, and times that need not pass."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from infra.gang import members
from infra.gang.members import Liveness
from infra.processes.processes import find_marked, kill_marked, new_mark
from infra.store import folder, lease


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The mark of all processes that the test starts; none may be left when it ends."""
    mark = new_mark()
    monkeypatch.setenv("TRAINWRIGHT_MARK", mark)
    yield mark
    left = find_marked(mark)
    kill_marked(mark)
    assert not left


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of trainings: none has to outlive a power cut."""
    monkeypatch.setattr(lease, "RETRY_S", 0.001)
    monkeypatch.setattr(folder, "_sync", lambda path: None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of a generation's liveness, which the test moves."""
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(members, "time", clock)
    return clock


@pytest.fixture
def liveness(clock: SimpleNamespace) -> Liveness:
    return Liveness(hang_s=45, stall_s=1800, stopped_s=15)
