"""Tricks that a reviewer would stop at are listed, with the reason for each that is left: the table only shrinks.

A trick reaches into what is not ours: it replaces imports or parts of libraries, uses their private names, generates
machine code, or tunes the collector.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.files import tracked_files

OURS = {"flows", "tasks", "training", "infra", "data_contracts", "tests", "benchmarks", "noise", "examples"}
# Their attributes are documented as settable: `sys.argv`, `os.environ`, `logging.raiseExceptions`.
SETTABLE = {"sys", "os", "logging"}
# File → how many tricks are left in it, and why.
LEFT: dict[str, tuple[int, str]] = {
    ".ci/lock.py": (1, "pip has no public way to say which file of a package it would take"),
    "benchmarks/plan.py": (2, "a count of living bytes, which torch gives under private names alone"),
    "data_contracts/contract/great_expectations_engine.py": (
        4,
        "Great Expectations registers a user's classes for the whole process, and has no public way to take them out",
    ),
    "tests/gpu/models.py": (1, "a kernel that never ends"),
    "tests/support/save_sweep.py": (1, "a store's answers are lost at each request in turn"),
    "tests/support/speed/children.py": (3, "processes of tests are forked from one that has imported everything"),
    "tests/support/speed/garbage.py": (1, "a fifth of the processor time of tests"),
    "tests/support/speed/prefect_modules.py": (
        2,
        "Prefect is imported before a command is forked, and reads its settings after",
    ),
    "tests/support/tiny.py": (1, "a test's project has modules of the same names as another's"),
    "training/checkpoint/saver.py": (1, "torch has no public name for a rank's offset in a sharded tensor"),
    "training/export/portable.py": (1, "a batch is taken apart as torch.export takes its inputs apart"),
    "training/export/worker.py": (1, "the same"),
    "training/fit/memory.py": (1, "torch documents FakeTensorMode under this name alone"),
    "training/fit/reports.py": (1, "nothing else says that a rank waits in a collective of the user's, so is not hung"),
    "training/fit/strategies.py": (2, "a subgroup's timeout; a rank's offset in a sharded tensor"),
    "training/lightning_adapter.py": (4, "the one adapter to Lightning's inside, see test_sources.py"),
    "training/user/imports.py": (1, "modules of one project are forgotten before those of another are imported"),
}
# It only goes down.
MOST = 30


# What a trick is made of.
KINDS = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Subscript, ast.Call)


def tricks_in(source: str) -> Counter[str]:
    """How often a module uses each kind of trick."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, KINDS)]
    foreign = dict(_foreign_names(nodes))
    return Counter(kind for node in nodes for kind in _tricks_of(node, foreign))


def _foreign_names(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Each name that stands for something of another package, and that package."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname or alias.name).partition(".")[0], alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, node.module.partition(".")[0]


def _tricks_of(node: ast.AST, packages: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from _of_import(node)
    elif isinstance(node, ast.Attribute):
        owner = _root(node.value)
        package = packages.get(owner, "")
        if node.attr == "meta_path":
            yield "import hook"
        elif package == "gc" and node.attr in ("disable", "freeze"):
            yield "collector"
        elif isinstance(node.ctx, ast.Store | ast.Del) and package and package not in OURS | SETTABLE:
            yield "attribute of a library"
        elif _is_private(node.attr) and _is_dependency(package):
            yield "private name"
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        if ast.unparse(node.value) == "sys.modules":
            yield "stand-in module"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
        package = packages.get(_root(node.args[0]), "")
        if package and package not in OURS | SETTABLE:
            yield "attribute of a library"


def _of_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
    package = modules[0].partition(".")[0]
    if package == "llvmlite":
        yield "machine code"
    elif _is_dependency(package) and any(map(_is_private, [*names, *".".join(modules).split(".")])):
        yield "private name"


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_dependency(package: str) -> bool:
    return bool(package) and package not in OURS and package not in sys.stdlib_module_names


def test_the_tricks_that_are_left_are_listed(repository: Path) -> None:
    listed = [name for name in tracked_files(repository) if name.endswith(".py")]
    others = [name for name in listed if not name.startswith("tests/zoo/modules/")]  # other people's modules
    found = {name: tricks_in((repository / name).read_text()).total() for name in others}
    left = {name: number for name, (number, _) in LEFT.items()}
    assert {name: number for name, number in found.items() if number} == left, "do without, or shorten the table"
    assert sum(left.values()) <= MOST
    assert all(reason for _, reason in LEFT.values())


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import sys\nsys.meta_path.insert(0, finder)", "import hook"),
        ("import sys\nsys.modules['torch'] = object()", "stand-in module"),
        ("from llvmlite import ir", "machine code"),
        ("import gc\ngc.freeze()", "collector"),
        ("import torch.distributed as dist\ndist.Work.wait = timed", "attribute of a library"),
        ("from lightning import Trainer\nsetattr(Trainer, 'fit', timed)", "attribute of a library"),
        ("from prefect._internal import x", "private name"),
        ("from prefect.client import _y", "private name"),
        ("import torch\ntorch._dynamo.reset()", "private name"),
    ],
)
def test_each_kind_is_found(source: str, kind: str) -> None:
    assert tricks_in(source) == {kind: 1}


@pytest.mark.parametrize("source", ["import infra\ninfra.x = 1", "import os\nos._exit(0)", "self._x = torch.ones(1)"])
def test_what_is_ours_or_documented_is_not_a_trick(source: str) -> None:
    assert not tricks_in(source)
