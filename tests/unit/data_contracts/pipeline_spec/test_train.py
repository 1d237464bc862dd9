"""The `train` section: when a checkpoint is written."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.load import problems
from data_contracts.pipeline_spec import TrainSpec


def read(checkpoint: Any) -> TrainSpec:
    return TrainSpec.model_validate({"lightning": {}, "global_batch_size": 8, "checkpoint": checkpoint})


@pytest.mark.parametrize(
    ("checkpoint", "written"),
    [
        ({}, {"every_steps": None, "keep": 2}),  # as before there was a clock, so keys and records stay the same
        ({"every_s": 900}, {"every_steps": None, "every_s": 900.0, "keep": 2}),
        ({"every_s": 0.5, "every_steps": 7}, {"every_steps": 7, "every_s": 0.5, "keep": 2}),
    ],
)
def test_a_checkpoint_by_the_clock(checkpoint: Any, written: dict[str, Any]) -> None:
    assert read(checkpoint).model_dump(mode="json")["checkpoint"] == written


@pytest.mark.parametrize("every_s", [0, -1, float("nan"), float("inf"), True, "900"])
def test_a_spacing_that_is_none_is_refused_by_name(every_s: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        read({"every_s": every_s})
    [problem] = problems(caught.value, TrainSpec, {"checkpoint": {"every_s": every_s}})
    assert problem.field == ("checkpoint", "every_s")
