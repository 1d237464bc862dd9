"""Imports go one way, and what is fenced stays inside: read from the sources, and seen in fresh interpreters."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("flows", "tasks", "training", "infra", "data_contracts")


def _python(code: str, repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def test_layers_and_fences(repository: Path) -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Modules with what importing each may not load: a line of few rows spends most of its time in imports. Those of a group
# are imported in this order in one interpreter, so that what several of them need is imported once.
GROUPS: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        "infra.processes.tied_to_parent": ("torch", "numpy", "pyarrow", "pydantic"),
        "infra.gang.rank_bootstrap": ("torch", "lightning", "prefect", "pyarrow", "numpy"),
        "infra.gang.supervisor": ("torch", "lightning", "prefect"),
        "infra.gang.remote_job": ("torch", "lightning", "prefect"),
        "infra.orchestrator.gang": ("torch", "lightning", "prefect"),
        "flows.cli": ("torch", "lightning", "prefect", "great_expectations", "pandas", "s3fs", "distributed"),
        "infra.contract.contract_worker": ("torch", "lightning", "prefect", "great_expectations", "pandas"),
        "training.user.contract_worker": ("torch", "lightning", "prefect", "great_expectations", "pandas"),
        "training.shard.cut_worker": ("torch", "lightning", "prefect", "great_expectations", "pandas", "numba"),
        "training.fit.rank": ("torch", "prefect", "great_expectations", "numba"),
        "infra.cluster_tasks": ("torch", "lightning", "prefect", "distributed"),
        "training.shard.worker": ("torch", "lightning", "prefect", "distributed", "pandas", "numba"),
    },
    {
        "flows.node": ("torch", "lightning", "great_expectations", "pandas"),
        "flows.retrain": ("torch", "lightning", "great_expectations", "dask", "distributed"),
        "tasks.stages.dask_cluster": ("torch", "lightning", "great_expectations"),
    },
    {
        "training.fit.torchrun_agent": ("lightning", "prefect", "pyarrow"),
        "training.fit.memory": ("prefect", "great_expectations", "numba"),
        "training.score.verify_worker": ("prefect", "great_expectations", "pandas", "numba", "distributed"),
        "training.score.evaluate_worker": ("prefect", "great_expectations", "pandas", "numba", "distributed"),
    },
)
IMPORT_EACH = """
import importlib, json, sys
for module, never in json.loads(sys.argv[1]).items():
    importlib.import_module(module)
    print(json.dumps([module, [name for name in never if name in sys.modules]]))
"""


def _loaded(group: dict[str, tuple[str, ...]], repository: Path) -> dict[str, list[str]]:
    """What had been loaded of what it may not load after each import, by module."""
    done = _python(IMPORT_EACH, repository, json.dumps(group))
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def loaded(repository: Path) -> dict[str, list[str]]:
    """The same, of all groups; a module after which something had been loaded is imported by itself."""
    found = {module: names for group in GROUPS for module, names in _loaded(group, repository).items()}
    never = {module: names for group in GROUPS for module, names in group.items()}
    doubtful = [module for module, names in found.items() if names]
    return found | {module: _loaded({module: never[module]}, repository)[module] for module in doubtful}


@pytest.mark.parametrize("module", [module for group in GROUPS for module in group])
def test_importing_a_module_loads_nothing_heavy_by_accident(module: str, loaded: dict[str, list[str]]) -> None:
    assert loaded[module] == []


def test_no_installed_distribution_owns_our_names(repository: Path) -> None:
    owners = importlib.metadata.packages_distributions()
    for room in ROOMS:
        others = set(owners.get(room, [])) - {"trainwright"}
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
