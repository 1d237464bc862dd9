"""A rank's measures: a step lasts from its first fetch to its last micro-batch, and what follows is no part of it."""

from __future__ import annotations

import psutil
import pytest

from data_contracts.messages.gang import STEP_BOUNDS, Saved
from tests.support.clocks import Clock
from training.fit.reports import Measures, RankActivity


def test_a_step_ends_with_its_last_micro_batch() -> None:
    clock = Clock()
    activity = RankActivity(clock)
    measures = Measures(activity, clock)
    measures.step()  # before the first
    for length in (0.04, 0.04, 0.2):
        clock.now += length
        activity.stepped()
        clock.now += 30  # a checkpoint, or a validation
        measures.step()
    measures.step()  # no step in between
    record = measures.record(activity.spent_s)
    assert record.steps_s == pytest.approx(0.28)
    counted = {STEP_BOUNDS[place]: number for place, number in enumerate(record.step_counts) if number}
    assert counted == {0.05: 2, 0.2: 1} or counted == {0.05: 2, 0.3: 1}  # 0.2 is a sum of floats


def test_saves_places_and_memory() -> None:
    clock = Clock()
    activity = RankActivity(clock)
    measures = Measures(activity, clock)
    clock.now += 3
    activity.enter("fetching")
    measures.saved(Saved(step=1, began=10.0, ended=12.0, sealed=True))
    measures.saved(Saved(step=2, began=13.0, ended=14.0, sealed=False))
    measures.device_memory = lambda: 7
    record = measures.record(activity.spent_s)
    assert (record.saves, record.failed_saves, record.saving_s) == (1, 1, 3.0)
    assert [saved.step for saved in record.newest_saves] == [1, 2]
    assert (record.spent_s, record.device_memory_bytes, record.step_counts) == ({"starting": 3.0}, 7, [])
    assert record.memory_bytes > 2**20
    assert record.memory_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.5)
