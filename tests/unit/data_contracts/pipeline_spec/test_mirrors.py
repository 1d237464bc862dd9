"""`mirrors` in a spec: credentials are named, addresses hold none, and names fit the mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import SpecError
from data_contracts.lightning_config import check_lightning
from data_contracts.load import load_spec
from tests.support.tiny import write_project

MLFLOW = {"uri": "https://mlflow.example"}


def loaded(folder: Path, mirrors: dict[str, Any], **more: Any) -> Any:
    return load_spec(write_project(folder / "tiny", {"mirrors": mirrors, **more}))


@pytest.mark.parametrize(
    ("mirrors", "sentence"),
    [
        ({"mlflow": {**MLFLOW, "token": "abc"}}, "must name a credential"),
        ({"mlflow": {**MLFLOW, "token": "env:TRAINWRIGHT_SIGNING_KEY"}}, "a variable of Trainwright's own"),
        ({"mlflow": {**MLFLOW, "username": "env:A"}}, "password: is missing"),
        ({"mlflow": {**MLFLOW, "username": "env:A", "password": "env:B", "token": "env:C"}}, "exclude each other"),
        ({"mlflow": {"uri": "https://me:secret@mlflow.example"}}, "without user, password"),
        ({"mlflow": {"uri": "file:///tmp"}}, "must be http"),
        ({"wait_s": 0}, "must be more than 0"),
    ],
)
def test_what_is_refused(mirrors: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=sentence) as caught:
        loaded(tmp_path, mirrors)
    assert "secret" not in str(caught.value)


def test_names_that_a_mirror_cannot_have(tmp_path: Path) -> None:
    for alias in ("latest", "v3"):
        with pytest.raises(SpecError, match="MLflow keeps for itself"):
            loaded(tmp_path / alias, {"mlflow": MLFLOW}, promote={"alias": alias})


def test_dropped_mirrors_of_an_earlier_spec_are_read_and_one_sentence_names_them(tmp_path: Path) -> None:
    asked = {"mlflow": MLFLOW, "gto": True, "huggingface": {"folder": "models"}, "openlineage": {"file": "a"}}
    spec = loaded(tmp_path, asked)
    assert spec.mirrors.names == ["mlflow"]
    assert spec.model_dump(mode="json")["mirrors"] == asked
    [sentence] = [one for one in check_lightning(spec.train.lightning, spec) if "mirrors" in one]
    named = "mirrors.gto and mirrors.huggingface and mirrors.openlineage"
    assert sentence.startswith(f"These mirrors were dropped and get nothing: {named}.")
