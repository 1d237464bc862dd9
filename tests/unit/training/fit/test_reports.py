"""What a rank says of its progress: the share of the time that it waited for data."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.clocks import Clock
from training.fit.reports import Reports


def test_the_share_that_waited_counts_from_the_beginning_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    reports = Reports(tmp_path, 0, 1.0)
    reports.report(now=True)
    assert reports.wait_share == 0.0
    clock.now += 50  # building the model is no waiting
    reports.begin()
    reports.report(now=True)
    for _ in range(4):
        clock.now += 10
        reports.waited(1)
        reports.report()
    assert json.loads((tmp_path / "rank-0.json").read_text())["wait_share"] == 0.1
    clock.now += 40
    reports.waited(16)
    assert reports.wait_share == 0.25
    reports.report(now=True)
    assert json.loads((tmp_path / "rank-0.json").read_text())["wait_share"] == 0.4
