"""Where a rank is, as Lightning's hooks tell it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.lightning_training import Batches, Net, quiet_trainer
from training.fit.measuring import ActivityCallback
from training.fit.reports import Reports


def test_a_training_passes_through_its_places(tmp_path: Path) -> None:
    reports = Reports(tmp_path, 0, 1.0)
    places: list[str] = []

    class Noted(ActivityCallback):
        def enter(self, place: str) -> None:
            super().enter(place)
            places.append(place)

    activity = Noted(reports)
    trainer: Any = quiet_trainer(callbacks=[activity])
    trainer.fit(Net([]), Batches(), Batches())
    step, validation = ["stepping", "between"], ["hooks", "validation", "validation", "hooks"]
    assert places == [*step, *step, *validation, "hooks", "hooks"]
    assert (reports.activity.steps, reports.activity.moves, reports.activity.place) == (2, 4, "hooks")
    assert activity.waits(trainer)[1] == "your loader"


def test_the_time_of_steps_is_without_the_first_and_with_what_follows_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    activity: Any = ActivityCallback(Reports(tmp_path, 0, 1.0))
    for at, hook in [(9, "batch"), (11, "batch"), (14, "epoch"), (16, "batch"), (21, "epoch")]:
        now[0] = at
        activity.on_train_batch_end(None, None, None, None, 0) if hook == "batch" else activity.on_train_epoch_end(0, 0)
    assert activity.stepping_s == 12
