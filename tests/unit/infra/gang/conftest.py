"""A generation's liveness with a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from infra.gang import members as liveness_module
from infra.gang.members import Liveness


@pytest.fixture
def liveness_clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(liveness_module, "time", clock)
    return clock


@pytest.fixture
def liveness(liveness_clock: SimpleNamespace) -> Liveness:
    return Liveness(hang_s=45, stall_s=1800, stopped_s=15)
