"""What is wrong in a spec and the files it names is said with file, line and field, before a store is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import SpecError
from tasks.run.spec_check import check_spec
from tests.support.tiny import SPEC, write_project

METRIC = SPEC["evaluate"]["metrics"]["accuracy"]
NO_METRIC = {"metrics": {"accuracy": {**METRIC, "class_path": "nett.Metric"}}}
NO_MODULE = "there is no module nett in {folder}, and none is installed. Write the path from the project's root"
# Changed sections of the spec, overrides, and the whole place with its field.
CASES: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "a file of its own": ({}, ["train.lightning=lightning.yaml"], "{folder}/lightning.yaml:2: model.class_path"),
    "transform of the shards": (
        {"shards": {"split": {"key": "id"}, "transform": "nett.build"}}, [], "{spec}:12: shards.transform",
    ),
    "transform with arguments": (
        {"shards": {"split": {"key": "id"}, "transform": {"call": "nett.build", "args": {"x": 1}}}}, [],
        "{spec}:12: shards.transform",
    ),
    "metric": ({"evaluate": NO_METRIC}, [], "{spec}:31: evaluate.metrics.accuracy.class_path"),
    "override": ({}, ["train.transform=nett.build"], "--set: train.transform"),
    "override of a field that is right": (
        {}, ["train.lightning.model.class_path=nett.Net"], "--set: train.lightning.model.class_path",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_code_that_does_not_exist_is_named_with_its_place(case: str, tmp_path: Path) -> None:
    sections, overrides, place = CASES[case]
    spec = write_project(tmp_path, sections)
    (tmp_path / "lightning.yaml").write_text("model:\n  class_path: nett.Net\n")
    with pytest.raises(SpecError) as error:
        check_spec(spec, overrides, None)
    where = place.format(folder=tmp_path, spec=spec)
    assert str(error.value).startswith(f"{where}: 'nett."), str(error.value)
    assert NO_MODULE.format(folder=tmp_path) in str(error.value)


def test_a_spec_that_is_right_passes(tmp_path: Path) -> None:
    check_spec(write_project(tmp_path), [], None)
    assert not (tmp_path / ".trainwright").exists()
