"""What is wrong in a spec and the files it names is said with file, line and field, before a store is opened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import SpecError, UsageError
from infra.prices import VARIABLE
from tasks.run.spec_check import read_spec
from tests.support.tiny import SPEC, write_project

NO_METRIC = {"metrics": {"accuracy": {**SPEC["evaluate"]["metrics"]["accuracy"], "class_path": "nett.Metric"}}}
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


@pytest.mark.parametrize(("sections", "overrides", "place"), CASES.values(), ids=CASES)
def test_code_that_does_not_exist_is_named_with_its_place(
    sections: dict[str, Any], overrides: list[str], place: str, tmp_path: Path
) -> None:
    spec = write_project(tmp_path, sections)
    (tmp_path / "lightning.yaml").write_text("model:\n  class_path: nett.Net\n")
    with pytest.raises(SpecError) as error:
        read_spec(spec, overrides).check(None)
    assert str(error.value).startswith(f"{place.format(folder=tmp_path, spec=spec)}: 'nett."), str(error.value)
    assert NO_MODULE.format(folder=tmp_path) in str(error.value)


def test_a_spec_that_is_right_passes(tmp_path: Path) -> None:
    read_spec(write_project(tmp_path)).check(None)
    assert not (tmp_path / ".trainwright").exists()


def test_a_parameter_that_no_suite_uses_is_refused(tmp_path: Path) -> None:
    """Those of the suites of features and of evaluation sets count as used."""

    def suite(name: str) -> dict[str, Any]:
        kwargs = {"column": "a", "value_set": [{"deep": [{"$PARAMETER": name}]}]}
        return {"name": "s", "expectations": [{"type": "expect_column_values_to_be_in_set", "kwargs": kwargs}]}

    evaluate = {**SPEC["evaluate"], "sets": {"hard": {"source": "rows.csv", "contract": {"suite": suite("of_set")}}}}
    contract = {"suite": suite("of_data"), "features": {"suite": suite("of_features")}}
    values = {"of_data": 1, "of_features": 2, "of_set": 3}
    read_spec(write_project(tmp_path, {"contract": {**contract, "parameters": values}, "evaluate": evaluate})).check(
        None
    )
    for more, hint in (("of_dat", "; did you mean of_data?"), ("zzz", "; they use of_data, of_features, of_set.")):
        spec = write_project(
            tmp_path, {"contract": {**contract, "parameters": {**values, more: 1}}, "evaluate": evaluate}
        )
        words = re.escape(f"contract.parameters.{more}: no suite uses this parameter{hint}")
        with pytest.raises(SpecError, match=f"^{words}"):
            read_spec(spec).check(None)
    with pytest.raises(SpecError, match="no suite uses this parameter; they use none"):
        read_spec(
            write_project(tmp_path / "none", {"contract": {"suite": "suite.json", "parameters": {"x": 1}}})
        ).check(None)


def test_another_machine_than_the_pools_is_refused_before_a_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "prices.yaml"
    book.write_text("version: 1\npools: {gpu: aws-p5.48xlarge}\n")
    monkeypatch.setenv(VARIABLE, str(book))
    with pytest.raises(UsageError, match=r"train.machine: aws-m7g.large, but the nodes of the pool gpu are aws-p5"):
        read_spec(
            write_project(tmp_path), ["train.launcher=work-pool", "train.pool=gpu", "train.machine=aws-m7g.large"]
        ).check(None)
