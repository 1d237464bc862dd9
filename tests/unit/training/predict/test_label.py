"""Which columns of a batch only its label needs."""

from __future__ import annotations

from typing import Any

import pytest

from training.predict.raw_rows import label_columns

COLUMNS = ["a", "b", "label", "weight"]


@pytest.mark.parametrize(
    ("batch", "target", "label"),
    [
        ([["a", "b"], "label"], "label", {"label"}),
        ([["a", "b"], "label"], "1", {"label"}),
        ([["a", "b"], "label"], "-1", {"label"}),
        ([["a", "b"], ["label", "weight"]], "1", {"label", "weight"}),
        ({"x": ["a", "b"], "y": "label"}, "y", {"label"}),
        ({"x": ["a", "label"], "y": "label"}, "y", set()),  # also an input
        (["a", "a"], "1", set()),
        (None, "label", {"label"}),
        (None, "made_in_train_transform", set()),
        ([["a", "b"], "label"], None, set()),
    ],
)
def test_the_target_names_the_label(batch: Any, target: str | None, label: set[str]) -> None:
    metrics = {"accuracy": {"target": target}, "loss": {"logged": "loss"}}
    assert label_columns(batch, metrics, COLUMNS) == label
