"""What a rank is told: the launch file and the environment; what it cannot read it says in its error file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from training.fit.rank import main

LAUNCH: dict[str, Any] = {
    "schema_version": 1,
    "training": "trainings/abc-0",
    "generation": 2,
    "nodes": 1,
    "devices": 1,
    "dataset": None,
    "train": {"lightning": {"model": {"class_path": "a.B"}}, "global_batch_size": 4},
    "resume": None,
    "provenance": {},
    "heartbeat_s": 1.0,
}


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a launch file and sets the environment that names it."""

    def tell(text: str) -> None:
        (tmp_path / "launch.json").write_text(text)
        for name, value in {"LAUNCH": tmp_path / "launch.json", "SCRATCH": tmp_path, "PROJECT": tmp_path}.items():
            monkeypatch.setenv(f"TRAINWRIGHT_{name}", str(value))
        monkeypatch.setenv("TRAINWRIGHT_STORE", str(tmp_path / "store"))
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, "0")
        monkeypatch.setenv("WORLD_SIZE", "1")

    return tell


NEWER = "The launch file cannot be read: This Launch has schema 9, newer than the 1 that this Trainwright reads."
REFUSED = {
    "newer": (
        {**LAUNCH, "schema_version": 9},
        1,
        "internal",
        NEWER,
    ),
    "no key": ({"schema_version": 1}, 1, "internal", "The launch file cannot be read: training: Field required."),
    "not finite": (
        {**LAUNCH, "sealed": {"train": {"lr": float("nan")}}},
        2,
        "usage",
        "train.lightning holds a number that is not finite, which a checkpoint's settings cannot.",
    ),
}


@pytest.mark.parametrize(("launch", "code", "cause", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_rank_says_why_it_cannot_begin(
    launch: Any, code: Any, cause: Any, sentence: Any, told: Any, tmp_path: Path
) -> None:
    told(json.dumps(launch))
    assert main() == code
    error = json.loads((tmp_path / "rank-0.error.json").read_text())
    assert (error["cause"], error["message"]) == (cause, sentence)
