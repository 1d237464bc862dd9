"""Where a rank is, as Lightning's hooks tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.lightning_training import Batches, Net, quiet_trainer
from training.fit.activity_callback import ActivityCallback
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
