"""The core without the ring: a pipeline is promoted from sources of which the features' files were deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from flows.features import FEATURES, Feature
from tests.support.pool import server_url
from tests.support.tiny import answer, trainwright, write_project

ROOMS = ("flows", "tasks", "training", "infra", "data_contracts")
# Prints the commands that are offered, each once its module is imported.
OFFERED = """
from importlib import import_module
from flows.cli import SUBCOMMANDS
for name, (module, _) in SUBCOMMANDS.items():
    getattr(import_module(f"flows.commands.{module}"), "stage" if module == "stages" else name)
    print(name)
"""
# Python imports it at its start. An editable installation would find the deleted modules in the checkout.
SITE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in finder.__module__]
"""


def copy_without(repository: Path, folder: Path, rows: Sequence[Feature]) -> Path:
    """Copy the sources and delete the files of these features; returns the copy's root."""
    for name in ROOMS:
        shutil.copytree(repository / name, folder / name)
    for path in (folder / one for row in rows for one in row.folders):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / "sitecustomize.py").write_text(SITE)
    return folder


def needing(rows: Sequence[Feature]) -> set[str]:
    """The names of these features, and of all that need one of them."""
    names = {row.name for row in rows}
    while more := {row.name for row in FEATURES if names & {*row.needs}} - names:
        names |= more
    return names


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(FEATURES, id="all", marks=pytest.mark.slow),
        *(pytest.param((row,), id=row.name, marks=pytest.mark.sweep) for row in FEATURES),
    ],
)
def test_a_pipeline_is_promoted_without_features(rows: Sequence[Feature], tmp_path: Path, repository: Path) -> None:
    server_url()  # started from the sources that are whole
    root = copy_without(repository, tmp_path / "copy", rows)
    environment = {"PYTHONPATH": str(root)}
    offered = subprocess.run(
        [sys.executable, "-c", OFFERED],
        cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert offered.returncode == 0, offered.stderr
    absent = needing(rows)
    assert {*offered.stdout.split()}.isdisjoint(name for row in FEATURES if row.name in absent for name in row.commands)
    assert {*offered.stdout.split()}.issuperset(
        name for row in FEATURES if row.name not in absent for name in row.commands
    )
    spec = write_project(tmp_path / "tiny")
    done = trainwright("run", spec, "--json", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert answer(done)["verdict"] == "promoted"
    assert "Error" not in done.stderr
