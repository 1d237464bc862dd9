"""What a process that imports the user's code needs of ours is what its sources import, and what the docs say."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from data_contracts.messages.children import EVALUATE, SHAKEDOWN, VERIFY
from data_contracts.messages.commands import EXPORT, MODULE_MEMORY
from data_contracts.messages.raw_data import CLUSTER_TASK, SHARD
from infra.environments import cache
from infra.environments.packages import closure, dist_infos, packages_folder

ENTRIES = [
    *(child.module for child in (EVALUATE, EXPORT, MODULE_MEMORY, CLUSTER_TASK, SHAKEDOWN, SHARD, VERIFY)),
    "infra.gang.rank_bootstrap",
    "infra.processes.tied_to_parent",
    "training.fit.game_day_rank",
    "training.fit.rank",
    "training.fit.torchrun_agent",
]
ROOMS = ("flows", "tasks", "training", "infra", "data_contracts")
# A source with `rev`, a gate `promote.export`: the user adds DVC or ONNX to the environment, and is told to. Without
# DuckDB and charset-normalizer, the error for a CSV file that is written otherwise has no guess.
ON_REQUEST = {"charset_normalizer", "duckdb", "dvc", "dvc_data", "onnx", "onnxruntime", "safetensors", "scmrepo"}
# Counts GPUs' energy for whoever has installed it.
OF_THE_OPERATOR = {"pynvml"}
# Modules of packages that the named ones need.
BROUGHT = {"aiohttp", "botocore", "fsspec", "packaging", "pydantic_core"}


def imported(source: Path, late: bool) -> Iterator[str]:
    """Every module that a file imports, and what it may import from a package; `late`: also inside of its functions."""
    tree = ast.parse(source.read_text())
    for node in ast.walk(tree) if late else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(root: Path, module: str) -> Path | None:
    path = root / module.replace(".", "/")
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)


def reached(root: Path, entries: Sequence[str], *, late: bool) -> tuple[set[str], set[str]]:
    """Our modules that the entry points may import, and the top-level modules of others that these import."""
    ours, others, waiting = set[str](), set[str](), list(entries)
    while waiting:
        module = waiting.pop()
        first = module.partition(".")[0]
        if first not in ROOMS:
            others |= {first} - sys.stdlib_module_names
        elif module not in ours and (file := file_of(root, module)) is not None:
            ours.add(module)
            waiting += [*imported(file, late), module.rpartition(".")[0] or module]
    return ours, others


def test_they_are_what_the_sources_import(repository: Path) -> None:
    ours, others = reached(repository, ENTRIES, late=True)
    assert {"infra.store.s3", "training.feistel"} <= ours, "also what is imported late"
    assert not {module for module in ours if module.startswith(("tasks.", "flows.", "infra.orchestrator"))}
    of = metadata.packages_distributions()
    not_ours = ON_REQUEST | OF_THE_OPERATOR | BROUGHT
    needed = {canonicalize_name(of[module][0]) for module in others - not_ours}
    # SQLAlchemy loads psycopg by the address of a database.
    assert needed | {"psycopg"} == {canonicalize_name(Requirement(line).name) for line in cache.rank_needs()}


def test_an_export_begins_in_an_environment_without_what_other_formats_need(repository: Path) -> None:
    ours, others = reached(repository, [EXPORT.module], late=False)
    assert {"training.export.worker", "training.score.outcomes", "infra.store"} <= ours
    assert not others & ON_REQUEST


def test_what_is_brought_is_needed_by_one_of_them() -> None:
    whole = closure(dist_infos(packages_folder()), map(Requirement, cache.rank_needs()))
    assert {canonicalize_name(name) for name in BROUGHT} <= whole
    assert not {"prefect", "dvc", "great-expectations", "pandas", "dask"} & whole


def test_they_are_bounded_as_our_own_and_published(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    own = {*project["dependencies"], *project["optional-dependencies"]["postgres"]}
    assert set(cache.rank_needs()) <= own
    assert "\n".join(cache.rank_needs()) in (repository / "docs/environment.md").read_text()
