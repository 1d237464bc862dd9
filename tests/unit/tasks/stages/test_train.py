"""The train stage: what its key is made of, and what it says of waiting for data."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tasks.stages.train import REMEDIES, warn_of_waiting
from tasks.stages.trainings import training_key
from tests.support.runs import make_run
from tests.support.tiny import SPEC

BASE: dict[str, Any] = {"lightning": {"model": {}}, "global_batch_size": 8}
BLOCK = {"shuffle": "block", "block_rows": 4}
CHANGES = [
    # what changes, whether the result may
    ({"loader": {"memory_bytes": 2**20}}, False),
    ({"loader": {"cache_bytes": 0}}, False),
    ({"micro_batch_size": 2}, False),
    ({"devices": 2}, False),
    ({"loader": {"shuffle": "block"}}, True),
    ({"loader": {"pad": {"x": 0}}}, True),
    ({"loader": {"mixture": {"column": "c", "weights": {"a": 1}}}}, True),
    ({"transform": {"call": "a.b"}}, True),
    ({"seed": 1}, True),
]


def key(change: dict[str, Any]) -> str:
    return training_key(make_run(spec={**SPEC, "train": {**BASE, **change}}), None)


@pytest.mark.parametrize(("change", "counts"), CHANGES)
def test_the_key_holds_what_decides_the_result_alone(change: dict[str, Any], counts: bool) -> None:
    assert (key(change) != key({})) is counts


@pytest.mark.parametrize("cause", REMEDIES)
def test_waiting_for_data_is_warned_of_above_a_share(cause: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trainwright"):
        warn_of_waiting(0.05, cause)
        assert caplog.messages == []
        warn_of_waiting(0.071, cause)
    assert caplog.messages == [f"train waited for data 7.1% of the time: {REMEDIES[cause]}"]
