"""Imports go one way, and what is fenced stays inside: read from the sources, and seen in fresh interpreters."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("flows", "tasks", "training", "infra", "data_contracts")


def _python(code: str, repository: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=False)


def test_layers_and_fences(repository: Path) -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("flows.retrain", ("torch", "lightning", "great_expectations", "dask", "distributed", "prefect_dask")),
        ("flows.node", ("torch", "lightning", "great_expectations", "pandas")),
        ("flows.cli", ("torch", "lightning", "prefect", "great_expectations", "pandas", "s3fs", "distributed")),
        # What each child of a line may not import: a line of few rows spends most of its time in imports.
        ("infra.contract.contract_worker", ("torch", "lightning", "prefect", "great_expectations", "pandas")),
        ("training.user.contract_worker", ("torch", "lightning", "prefect", "great_expectations", "pandas")),
        ("training.user.import_trial", ("torch", "lightning", "prefect", "pyarrow", "numpy")),
        ("training.fit.memory.module_memory", ("prefect", "great_expectations", "numba")),
        ("training.fit.torchrun_agent", ("lightning", "torch._refs", "torch._dynamo", "prefect", "pyarrow")),
        ("infra.processes.tied_to_parent", ("torch", "numpy", "pyarrow", "pydantic")),
        ("infra.gang.node.rank_bootstrap", ("torch", "lightning", "prefect", "pyarrow", "numpy")),
        ("training.fit.rank", ("torch", "prefect", "great_expectations", "numba")),
        ("training.score.verify_worker", ("prefect", "great_expectations", "pandas", "numba", "distributed")),
        ("training.score.evaluate_worker", ("prefect", "great_expectations", "pandas", "numba", "distributed")),
        ("training.shard.worker", ("torch", "lightning", "prefect", "distributed")),
        ("training.shard.cut_worker", ("torch", "lightning", "prefect", "great_expectations", "pandas", "numba")),
        ("infra.pieces.piece_worker", ("torch", "lightning", "prefect", "distributed")),
        ("tasks.stages.dask_cluster", ("torch", "lightning", "great_expectations")),
        ("infra.gang.node.supervisor", ("torch", "lightning", "prefect")),
        ("infra.gang.remote_job", ("torch", "lightning", "prefect")),
        ("infra.orchestrator.gang", ("torch", "lightning", "prefect")),
    ],
)
def test_importing_a_module_loads_nothing_heavy_by_accident(
    module: str, never: tuple[str, ...], repository: Path
) -> None:
    code = f"import sys, {module}; print(*sorted(name for name in {never!r} if name in sys.modules))"
    done = _python(code, repository)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "", f"importing {module} loads {done.stdout.strip()}"


@pytest.mark.parametrize("room", ROOMS)
def test_no_installed_distribution_owns_our_names(room: str, repository: Path) -> None:
    others = set(importlib.metadata.packages_distributions().get(room, [])) - {"trainwright"}
    assert not others, f"{room} belongs to {', '.join(sorted(others))} too"
    found = importlib.util.find_spec(room)
    assert found is not None, f"{room} cannot be imported"
    places = {Path(place).resolve() for place in found.submodule_search_locations or []}
    assert places == {repository / room}, f"{room} is found in {places}"


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_inside_a_folder_shadows_a_room(room: str, repository: Path) -> None:
    # A script puts its own folder first on sys.path: flows/tasks.py would then be `tasks`.
    shadows = [
        path.relative_to(repository)
        for parent in ROOMS
        for path in (repository / parent).rglob("*")
        if path.stem == room and path != repository / room and (path.suffix == ".py" or path.is_dir())
    ]
    assert not shadows
