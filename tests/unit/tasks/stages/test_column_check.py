"""Columns that a spec names and a dataset does not have are said before a node is launched."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import EvaluateSpec, TrainSpec
from tasks.stages.train import check_columns, refuse_unknown
from tests.support.runs import make_run
from tests.support.tiny import SPEC

COLUMNS = ["id", "bill_depth_mm", "year", "words", "species"]


def checked(
    target: str | int | None = None, columns: Sequence[str] = COLUMNS, *, sensitive: bool = False, **train: Any
) -> None:
    metric = {"logged": "val_loss"} if target is None else {"class_path": "net.Metric", "target": target}
    check_columns(
        TrainSpec.model_validate({"lightning": {}, "global_batch_size": 8, **train}),
        EvaluateSpec.model_validate({"metrics": {"accuracy": {**metric, "mode": "max"}}}),
        columns,
        sensitive=sensitive,
    )


HAS = "It has id, bill_depth_mm, year, words, species."
REFUSED = [
    (
        {"batch": [["year", "bil_depth_mm"], "species"]}, None,
        f"train.batch: the dataset has no column 'bil_depth_mm'; did you mean bill_depth_mm? {HAS}",
    ),
    ({"batch": {"x": "zzz"}}, None, f"train.batch: the dataset has no column 'zzz'. {HAS}"),
    (
        {"batch": ["words_length"]}, None,
        f"train.batch: the dataset has no column 'words_length'. {HAS}",
    ),
    ({}, "specis", f"evaluate.metrics.accuracy.target: a batch has no 'specis'; did you mean species? {HAS}"),
    (
        {"batch": {"x": "year", "y": "species"}}, "species",
        "evaluate.metrics.accuracy.target: a batch has no 'species'. It has x, y.",
    ),
    (
        {"batch": [["year", "id"], "species"]}, 2,
        "evaluate.metrics.accuracy.target: a batch has no '2'. It has species (positions 0 to 1).",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("train", "target", "sentence"), REFUSED)
def test_what_is_not_there_is_refused(train: dict[str, Any], target: str | int | None, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        checked(target, **train)


TAKEN = [
    ({"batch": [["year", "id"], "species"]}, "species"),
    ({"batch": [["year", "id"], "species"]}, -1),
    ({"batch": {"x": ["year", "id"], "y": "species"}}, "y"),
    ({}, "words"),
    ({"loader": {"pad": {"words": 0}}}, "words_length"),
    ({"batch": ["words", "words_length"], "loader": {"pad": {"words": 0}}}, None),
    # What a function makes of a batch is known when it was called.
    ({"batch": ["year"], "transform": "features.batch"}, "truth"),
]


@pytest.mark.parametrize(("train", "target"), TAKEN)
def test_what_is_there_is_taken(train: dict[str, Any], target: str | int | None) -> None:
    checked(target, **train)
    without = {name: value for name, value in train.items() if name != "loader"}
    with pytest.raises(UsageError, match="has no"):
        checked(target, ["another"], **without)


@pytest.mark.parametrize(("train", "target"), [({"batch": ["jane@x.exampl"]}, None), ({}, "jane@x.exampl")])
def test_of_sensitive_data_only_names_of_the_spec_are_told(train: dict[str, Any], target: str | None) -> None:
    with pytest.raises(UsageError, match="It has 2 columns, whose names are withheld") as caught:
        checked(target, ["id", "jane@x.example"], sensitive=True, **train)
    assert "jane@x.example" not in str(caught.value.to_json())


TYPES = {"customer": "string", "age": "int32", "image": "tensor<uint8>[8,8]", "at": "timestamp[us,UTC]"}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"unit": "customer"}, ""),
        ({"slices": {"s": {"where": "age > 3 and at >= '2026-01-01T00:00+00:00'"}}}, ""),
        ({"unit": "custom"}, "evaluate.unit: the dataset keeps no column 'custom'; did you mean customer?"),
        ({"slices": {"s": {"column": "agee", "min": 1}}}, "evaluate.slices.s: the dataset keeps no column 'agee'; did"),
        ({"slices": {"s": {"column": "customer", "min": 1}}}, "evaluate.slices.s: the condition compares texts with"),
        (
            {"slices": {"s": {"where": "image > 1"}}},
            "evaluate.slices.s: the condition names column 'image', which",
        ),
    ],
)
def test_unit_and_slices_are_looked_up_before_anything_is_trained(asked: dict[str, Any], sentence: str) -> None:
    run = make_run(spec={**SPEC, "evaluate": {**SPEC["evaluate"], **asked}}, lightning={"data": {}})
    dataset: Any = SimpleNamespace(columns=TYPES)
    refused = pytest.raises(UsageError, match=re.escape(sentence)) if sentence else contextlib.nullcontext()
    with refused:
        refuse_unknown(run, dataset)
