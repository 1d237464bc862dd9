"""`--set a.b=c`: where it reaches, and what it says where it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import SpecError
from data_contracts.load import load_spec
from tests.support.refusals import refusal


def _at(value: Any, field: str) -> Any:
    for part in field.split("."):
        value = value[int(part) if isinstance(value, list) else part]
    return value


@pytest.mark.parametrize(
    ("override", "field", "expected"),
    [
        ("train.seed=3", "train.seed", 3),
        ("train.seed= 3", "train.seed", 3),
        ("train.select={metric: val_loss, mode: min}", "train.select.mode", "min"),
        ("train.checkpoint.every_steps=5", "train.checkpoint.every_steps", 5),
        ("tags.owner=a=b", "tags.owner", "a=b"),
        ("promote.gates.0.min=0.5", "promote.gates.0.min", 0.5),
        ("promote.gates.2={metric: accuracy, max: 1}", "promote.gates.2.max", 1.0),
        ("promote.gates.0={metric: accuracy, max: 1}", "promote.gates.0.max", 1.0),
        ("promote.gates.0={metric: accuracy, max: 1}", "promote.gates.0.min", None),
        ("promote.gates.0={metric: accuracy, max: 1}", "promote.gates.1.min_gain", 0.0),
        ("promote.gates=[]", "promote.gates", []),
        ("data.source=[a.csv, b.csv]", "data.source.1.uri", "b.csv"),
        ("train.micro_batch_size=", "train.micro_batch_size", None),
        ("train.lightning=worse.yaml", "train.lightning", "worse.yaml"),
        ("train.lightning={model: {class_path: m.M}}", "train.lightning.model.class_path", "m.M"),
    ],
)
def test_what_an_override_sets(override: str, field: str, expected: Any, spec_file: Callable[..., Path]) -> None:
    spec = load_spec(spec_file(), [override])
    assert _at(spec.model_dump(mode="json"), field) == expected


def test_later_overrides_see_earlier_ones(spec_file: Callable[..., Path]) -> None:
    overrides = ["store={uri: a, storage_options: {anon: true}}", "store.uri=s3://b/c", "train.lightning={}",
                 "train.lightning.model.class_path=m.M"]  # fmt: skip
    spec = load_spec(spec_file(), overrides)
    assert (spec.store.uri, spec.store.storage_options) == ("s3://b/c", {"anon": True})
    assert spec.train.lightning == {"model": {"class_path": "m.M"}}


REFUSED = {
    "train.seed": "--set train.seed: write it as field=value, such as --set train.seed=3.",
    "=3": "--set : write it as field=value, such as --set train.seed=3.",
    "train..seed=3": "--set train..seed: write it as field=value, such as --set train.seed=3.",
    "train.sed=3": "--set: train.sed: unknown key; did you mean seed?",
    "train.seed=x": "--set: train.seed: must be a whole number, got 'x'",
    "train.seed=": "--set: train.seed: must be a whole number, but nothing is written here",
    "trian.seed=3": "--set: trian: unknown key; did you mean train?",
    "train=[": "--set: is not valid YAML: expected the node content, but found '<stream end>'; look "
    "at this line and the "
    "one before (indentation, colons, quotes).",
    "promote.gates.0.min=high": "--set: promote.gates.0.min: must be a number, got 'high'",
    "promote.gates.2={}": "--set: promote.gates.2: give either metric or expression, and not both",
    "promote.gates.3={}": "--set: promote.gates.3: promote.gates is a list of 2; name an entry by its number, counting "
    "from 0.",
    "promote.gates.2.min=1": "--set: promote.gates.2: promote.gates is a list of 2; name an entry "
    "by its number, counting "
    "from 0.",
    "promote.gates.-1.min=1": "--set: promote.gates.-1: promote.gates is a list of 2; name an entry by its number, "
    "counting from 0.",
    "name.first=x": "--set: name.first: name is 'digits', which has no fields; set name as a whole.",
    "name.first.second=x": "--set: name.first: name is 'digits', which has no fields; set name as a whole.",
    "version=2": "--set: version: 2 is newer than the 1 that this Trainwright reads; upgrade Trainwright",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_is_refused(override: str, spec_file: Callable[..., Path]) -> None:
    assert refusal(SpecError, load_spec, spec_file(), [override]).splitlines()[0] == REFUSED[override]


def test_an_error_elsewhere_keeps_its_line(spec_file: Callable[..., Path]) -> None:
    path = spec_file(("min: 0.9", "mim: 0.9"))
    assert refusal(SpecError, load_spec, path, ["promote.gates.1.min_gain=x", "train.devices=4"]).splitlines() == [
        "spec.yaml:23: promote.gates.0.mim: unknown key; did you mean min?",
        "--set: promote.gates.1.min_gain: must be a number, got 'x'",
    ]


def test_an_entry_that_is_null_has_no_fields_either(spec_file: Callable[..., Path]) -> None:
    path = spec_file(("source: digits.parquet", "source: [null]"))
    assert refusal(SpecError, load_spec, path, ["data.source.0.uri=a.csv"]) == (
        "--set: data.source.0.uri: data.source.0 is nothing, which has no fields; set data.source.0 as a whole."
    )


@pytest.mark.parametrize("train", ["", "train: x", "train: {lightning: {}}"])
def test_a_spec_whose_train_is_no_section_is_refused_as_such(train: str, spec_file: Callable[..., Path]) -> None:
    path = spec_file(text=f"version: 1\n{train}\n")
    with pytest.raises(SpecError):
        load_spec(path, ["train.lightning.model.class_path=m.M"])


def test_an_override_reaches_into_the_file_that_train_lightning_names(spec_file: Callable[..., Path]) -> None:
    path = spec_file()
    config = "model:\n  class_path: net.Net\n  init_args: {lr: 0.1}\ntrainer: {max_epochs: 3}\n"
    (path.parent / "lightning.yaml").write_text(config)
    changed = load_spec(path, ["train.lightning.model.init_args.lr=0.5", "train.lightning.trainer.max_steps=7"])
    assert changed.train.lightning == {
        "model": {"class_path": "net.Net", "init_args": {"lr": 0.5}},
        "trainer": {"max_epochs": 3, "max_steps": 7},
    }
    assert load_spec(path).train.lightning == "lightning.yaml"
    assert refusal(SpecError, load_spec, path, ["train.lightning.trainer.devices=9"]).startswith(
        "--set: train.lightning"
    )
    (path.parent / "lightning.yaml").unlink()
    message = refusal(SpecError, load_spec, path, ["train.lightning.model.init_args.lr=0.5"])
    assert "lightning.yaml" in message
    assert "correct train.lightning" in message
