"""What the records of a training say about its fault."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from data_contracts.messages.gang import CancelMarker, FaultName, InjectedFault, Launch, StepAfter
from infra.store import Store, layout
from infra.store.layout import game_day_record
from tasks.gameday import Timeline, read_timeline

TRAINING = "trainings/k-0"
BEGAN = 1_767_225_600.0
BAD = "trainings/k-0/checkpoints/20-g0"


def record(store: Store, path: str, value: dict[str, Any], after_s: float) -> None:
    """A record that was written so long after the fault."""
    store.create_json(path, value)
    os.utime(Path(store.uri) / path, (BEGAN + after_s,) * 2)


def struck(store: Store, name: FaultName, causes: dict[int, tuple[str, float]], resumed_from: int = 10) -> Store:
    """A training that was struck after step 15 of generation 1; generations that ended, each with cause and time."""
    for generation in range(max(causes, default=0) + 2):
        launch = Launch(training=TRAINING, generation=generation, nodes=1, devices=1)
        record(store, layout.launch(TRAINING, generation), launch.to_json(), 3.0 * generation)
    injected = InjectedFault(name=name, generation=1, rank=0, node=0, host="one", step=15, checkpoint=BAD)
    record(store, game_day_record(TRAINING, "injected"), injected.to_json(), 0.0)
    for generation, (cause, after_s) in causes.items():
        record(store, layout.cancel(TRAINING, generation), CancelMarker(cause=cause).to_json(), after_s)
    for what, step, after_s in (("first", resumed_from + 1, 9.0), ("caught-up", 16, 10.5)):
        after = StepAfter(generation=2, step=step, resumed_from=resumed_from)
        record(store, game_day_record(TRAINING, what), after.to_json(), after_s)  # type: ignore[arg-type]
    return store


@pytest.mark.parametrize(
    ("ends", "causes", "noticed"),
    [
        ({1: ("node_lost", 1.5)}, ("node_lost",), (1.5, "node_lost")),
        # What ended the generation before is not this fault.
        ({0: ("hung", -5.0), 1: ("node_lost", 1.5)}, ("hung",), (1.5, "node_lost")),
        ({1: ("node_lost", 1.5), 2: ("hung", 4.0)}, ("hung",), (4.0, "hung")),
        ({0: ("hung", -5.0)}, ("hung",), (None, "")),
        # Without a cause, it is the launch of the generation after.
        ({1: ("node_lost", 1.5)}, (), (6.0, "")),
    ],
)
def test_a_fault_is_noticed_when_a_generation_ends_by_its_cause(
    ends: dict[int, tuple[str, float]], causes: tuple[str, ...], noticed: tuple[float | None, str], store: Store
) -> None:
    times = read_timeline(struck(store, "rank-hung", ends), TRAINING, causes)
    assert (times.noticed_s, times.cause) == noticed
    assert (times.injected_at, times.recovered_s, times.caught_up_s) == (BEGAN, 9.0, 10.5)
    assert (times.resumed_from, times.lost_steps) == (10, 5)


@pytest.mark.parametrize("quarantined", [True, False])
def test_a_damaged_checkpoint_is_noticed_when_it_is_quarantined(quarantined: bool, store: Store) -> None:
    struck(store, "checkpoint-damaged", {1: ("node_lost", 1.5)})
    if quarantined:
        record(store, layout.quarantined(BAD), {"schema_version": 1, "reason": "its bytes changed"}, 5.0)
    times = read_timeline(store, TRAINING, ("corrupt",))
    assert (times.noticed_s, times.cause) == ((5.0, "corrupt") if quarantined else (None, ""))


def test_a_training_that_was_never_struck_has_no_times(store: Store) -> None:
    assert read_timeline(store, TRAINING, ("hung",)) == Timeline()
    assert Timeline().lost_steps is None
