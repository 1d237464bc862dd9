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
    ("mirrors", "alias", "sentence"),
    [
        ({"mlflow": {**MLFLOW, "token": "abc"}}, "champion", "must name a credential"),
        ({"mlflow": {**MLFLOW, "token": "env:TRAINWRIGHT_SIGNING_KEY"}}, "champion", "a variable of Trainwright's own"),
        ({"mlflow": {**MLFLOW, "username": "env:A"}}, "champion", "password: is missing"),
        ({"mlflow": {**MLFLOW, "username": "env:A", "password": "env:B", "token": "env:C"}}, "champion", "exclude"),
        ({"mlflow": {"uri": "https://me:secret@mlflow.example"}}, "champion", "without user, password"),
        ({"mlflow": {"uri": "file:///tmp"}}, "champion", "must be http"),
        ({"wait_s": 0}, "champion", "must be more than 0"),
        ({"mlflow": MLFLOW}, "latest", "MLflow keeps for itself"),
        ({"mlflow": MLFLOW}, "v3", "MLflow keeps for itself"),
    ],
)
def test_what_is_refused(mirrors: dict[str, Any], alias: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=sentence) as caught:
        loaded(tmp_path, mirrors, promote={"alias": alias})
    assert "secret" not in str(caught.value)


def test_dropped_mirrors_of_an_earlier_spec_are_read_and_one_sentence_names_them(tmp_path: Path) -> None:
    asked = {"mlflow": MLFLOW, "gto": True, "huggingface": {"folder": "models"}, "openlineage": {"file": "a"}}
    spec = loaded(tmp_path, asked)
    assert spec.mirrors.names == ["mlflow"]
    assert spec.model_dump(mode="json")["mirrors"] == asked
    [sentence] = [one for one in check_lightning(spec.train.lightning, spec) if "mirrors" in one]
    named = "mirrors.gto and mirrors.huggingface and mirrors.openlineage"
    assert sentence.startswith(f"These mirrors were dropped and get nothing: {named}.")
