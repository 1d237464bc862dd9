"""Every line of the kit for GPUs runs on a CPU: on a GPU, which is at hand rarely and briefly, nothing is found out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROWS = [
    "gpt", "killed", "checkpoint", "waits", "loader", "fsdp2", "faults", "memory", "killed elsewhere",
]  # fmt: skip
# Those that take seconds on a CPU; one of them trains.
SAMPLE = ["checkpoint", "waits"]
# What a machine with a GPU lacks and what is not carried there.
ABSENT = ("prefect", "great_expectations", "dvc", "s3fs", "duckdb", "sqlalchemy")
BLOCK = f"import sys\nfor name in {ABSENT!r}:\n    sys.modules[name] = None\n"


def dry_run(repository: Path, out: Path, *more: str, **environment: str) -> str:
    """What the kit writes into `out` on this machine's processor."""
    done = subprocess.run(
        ["bash", repository / "tests/gpu/run.sh", "--dry-run", "--out", out, *more],
        env={**os.environ, "KIT_PYTHON": sys.executable, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = out.glob("*-gpu-dry-run.txt")
    return path.read_text()


def results(text: str) -> dict[str, dict[str, Any]]:
    """The last line: what each row found, by its name."""
    return {row["row"]: row for row in json.loads(text.splitlines()[-1])}


def test_some_rows_of_a_dry_run_have_a_result(repository: Path, tmp_path: Path) -> None:
    rows = results(dry_run(repository, tmp_path, "--only", ",".join(SAMPLE)))
    assert list(rows) == SAMPLE
    assert {name: row["why"] for name, row in rows.items() if row["why"] or not row["found"]} == {}


@pytest.mark.slow
@pytest.mark.warm
@pytest.mark.timeout(1500)
def test_each_row_of_a_dry_run_has_a_result(repository: Path, tmp_path: Path) -> None:
    text = dry_run(repository, tmp_path)
    rows = results(text)
    assert list(rows) == ROWS
    assert {name: row["why"] for name, row in rows.items() if row["why"] or not row["found"]} == {}
    for name in ROWS:
        assert f"\n{name} (" in text
    # What does not depend on a GPU or on a quiet machine is met on a CPU, too.
    exact = [each for name in ("killed", "killed elsewhere", "faults") for each in rows[name]["found"]]
    assert [each["name"] for each in exact if each["met"] is False and each["name"] != "hang"] == []
    [first_loss] = [each for each in rows["fsdp2"]["found"] if each["name"].startswith("first loss")]
    assert first_loss["met"], first_loss
    assert "DRY RUN" in text


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.warm(False)
def test_it_needs_nothing_that_a_machine_with_a_gpu_lacks(repository: Path, tmp_path: Path) -> None:
    """Each process that it starts imports `sitecustomize`, after which these packages cannot be imported."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCK)
    blocked = {"PYTHONPATH": str(tmp_path / "site")}
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(
            [sys.executable, "-c", "import duckdb"], env={**os.environ, **blocked}, check=True, capture_output=True
        )
    rows = results(dry_run(repository, tmp_path / "out", **blocked))
    assert {name: row["why"] for name, row in rows.items() if row["why"] or not row["found"]} == {}


def test_both_scripts_can_be_started(repository: Path) -> None:
    for name in ("run.sh", "carry.sh"):
        path = repository / "tests/gpu" / name
        assert os.access(path, os.X_OK), f"{name} has no run bit"
        assert subprocess.run(["bash", "-n", path]).returncode == 0
