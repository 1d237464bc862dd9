"""What no stage can carry out is refused when a run is opened, with the field and before anything is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tests.support.tiny import SPEC, write_project

pytestmark = pytest.mark.usefixtures("home")
WINDOW = ["data.window.column=id"]
NONE: dict[str, Any] = {"suite": "none.json"}


def contract(**section: Any) -> dict[str, Any]:
    return {"contract": {**SPEC["contract"], **section}}


def evaluation_set(**section: Any) -> dict[str, Any]:
    return {"evaluate": {**SPEC["evaluate"], "sets": {"hard": section}}}


def appended(**split: Any) -> dict[str, Any]:
    return {"shards": {"split": split, "append": True}}


# Case: changed sections of the spec, overrides, and what the sentence says.
REFUSED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "features: no such suite": (contract(features=NONE), [], "contract.features.suite: there is no file none.json"),
    "features of TFRecord": (
        contract(features=SPEC["contract"]), ["shards.format=tfrecord"],
        "contract.features: needs shards.format: parquet",
    ),
    "predictions: no such suite": (
        contract(predictions=NONE), [], "contract.predictions.suite: there is no file none.json",
    ),
    "a set: no such suite": (
        evaluation_set(source="rows.csv", contract=NONE), [],
        "evaluate.sets.hard.contract.suite: there is no file none.json",
    ),
    "a set: a contract of a split": (
        evaluation_set(split="val", contract="none"), [], "the contract has seen this split's rows",
    ),
    "a set: no such file": (
        evaluation_set(source="nowhere.csv"), [],
        "evaluate.sets.hard.source.0.uri: no file matches nowhere.csv",
    ),
    "quarantine of more than all": (contract(quarantine={"max_share": 1.5}), [], "contract.quarantine.max_share"),
    "quarantine of less than nothing": (contract(quarantine={"max_share": -0.1}), [], "contract.quarantine.max_share"),
    "quarantine and append": (
        contract(quarantine={"max_share": 0.05}), ["shards.append=true"],
        "contract.quarantine: and shards.append exclude each other",
    ),
    "append: a split by time": (
        appended(time="a"), [], "append: and split.time with split.fractions exclude each other",
    ),
    "append: a split by two columns": (
        appended(column="a", key="id"), [], "append: and split.key beside split.column exclude each other",
    ),
    "append: a split by key and time": (
        appended(time="a", boundaries={"test": "2026-01-01"}, key="id"), [],
        "append: and split.key beside split.time",
    ),
    "csv without a CSV file": (
        {"data": {"source": "a.parquet", "csv": {"separator": ";"}}}, [],
        "data.csv: has no effect: no source is a CSV file",
    ),
    "csv of JSON": ({"data": {"source": {"uri": "a.jsonl", "csv": {}}}}, [], "data.source.csv: is for CSV files"),
    "csv: a semicolon for both": (
        {"data": {"source": "a.csv", "csv": {"separator": ";", "decimal": ";"}}}, [], "data.csv.decimal",
    ),
    "csv: a comma for both": (
        {"data": {"source": "a.csv", "csv": {"separator": ",", "decimal": ","}}}, [],
        "data.csv.decimal: and separator must differ",
    ),
    "a key in the spec": (
        {"promote": {"sign": "-----BEGIN PRIVATE KEY-----abcdef"}}, [], "must name a key as file:PATH or env:NAME",
    ),
    "two signers": ({"promote": {"sign": ["file:a", "file:b"]}}, [], "promote.sign"),
    "a requirement twice": ({"promote": {"require": ["signed", "signed"]}}, [], "names signed twice"),
    "an unknown requirement": ({"promote": {"require": ["blessed"]}}, [], "promote.require"),
    "more devices than a node has": (
        {"train": {**SPEC["train"], "strategy": "ddp", "devices": 2, "machine": "azure-nc24ads-a100-v4"}}, [],
        "train.devices: 2, but the machine azure-nc24ads-a100-v4 has 1. Ask for at most 1, or for more train.nodes, or "
        "train.machine aws-p4d.24xlarge.",
    ),
    "arrival: no length of time": (
        contract(arrival={"column": "id", "max_age": "6 hours"}), WINDOW,
        "contract.arrival.max_age: '6 hours' is not a length of time",
    ),
    "arrival: nothing": (contract(arrival={}), WINDOW, "contract.arrival: judges nothing; give max_age"),
    "arrival: a column alone": (
        contract(arrival={"column": "id"}), WINDOW,
        "contract.arrival.column: has no effect without max_age or max_late",
    ),
    "arrival: an age of nothing": (
        contract(arrival={"max_age": "6h"}), WINDOW, "contract.arrival.max_age: needs a column of times",
    ),
    "arrival: late by nothing": (
        contract(arrival={"max_late": 0.1}), WINDOW, "contract.arrival.max_late: needs a column of times",
    ),
    "arrival: shares that exclude each other": (
        contract(arrival={"min_share": 2, "max_share": 1}), WINDOW,
        "contract.arrival.min_share: is 2, more than max_share, 1; no data fits",
    ),
    "arrival: files named alike": (
        contract(arrival={"files": "daily"}), WINDOW, "contract.arrival.files: 'daily' is the same for every day",
    ),
    "arrival: files named by the hour": (
        contract(arrival={"files": "%H"}), WINDOW, "contract.arrival.files: '%H' has a time of day",
    ),
    "arrival: files without a window": (
        contract(arrival={"files": "%d"}), [], "contract.arrival.files: needs data.window",
    ),
    "arrival: late without a window": (
        contract(arrival={"column": "id", "max_late": 0}), [], "contract.arrival.max_late: needs data.window",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sections", "overrides", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_carried_out_is_refused_with_its_field(
    sections: dict[str, Any], overrides: list[str], sentence: str, tmp_path: Path
) -> None:
    spec = write_project(tmp_path / "tiny", sections)
    with pytest.raises(UsageError, match=re.escape(sentence)) as refused:
        open_run(read_spec(spec, overrides), recorded=False)
    assert "abcdef" not in str(refused.value), "a private key is not said again"
