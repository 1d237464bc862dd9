"""One seam to Lightning: what it does not document is touched by the adapter alone, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lightning_internals import INTERNALS

ROOMS = ("flows", "tasks", "training", "infra", "data_contracts")
SEAM = "training.lightning_adapter"
LIBRARIES = ("lightning", "pytorch_lightning", "torchmetrics")
# What holds the internals has no underscore, and is as little documented.
INSIDES = {"fit_loop", "epoch_loop", "val_loop", "batch_progress", "epoch_progress"}
# Owners whose private attributes are Lightning's, whatever they are called.
OWNERS = {"trainer", "strategy"}
LISTED = {part for line in INTERNALS for part in line.name.split(".") if part.startswith("_")} - {"__init__"}


def touched(tree: ast.AST) -> Iterator[str]:
    """The internals of Lightning or torchmetrics that a module imports, reads, sets or overrides."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            yield from (f"{node.module}.{one.name}" for one in node.names if one.name.startswith("_"))
        elif isinstance(node, ast.Attribute) and (node.attr in LISTED | INSIDES or _is_private_of_an_owner(node)):
            yield ast.unparse(node)
        elif isinstance(node, ast.FunctionDef) and node.name in LISTED:
            yield f"def {node.name}"


def _is_private_of_an_owner(node: ast.Attribute) -> bool:
    owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    return owner in OWNERS and node.attr.startswith("_")


def test_only_the_adapter_touches_the_inside_of_lightning(repository: Path) -> None:
    found = {}
    for path in (path for room in ROOMS for path in sorted((repository / room).rglob("*.py"))):
        module = ".".join(path.relative_to(repository).with_suffix("").parts)
        if module != SEAM and (names := sorted(touched(ast.parse(path.read_text())))):
            found[module] = names
    assert not found, "go through training.lightning_adapter instead"


@pytest.mark.parametrize(
    "line",
    [
        "from lightning.pytorch.loops.loop import _Loop",
        "trainer._data_connector.attach()",
        "self.trainer._anything = 1",
        "done = loop.trainer.fit_loop.done",
        "metric._update_count = 0",
        "class Loop:\n    def _on_after_fetch(self): ...",
    ],
)
def test_a_line_that_reaches_inside_is_found(line: str) -> None:
    assert len(list(touched(ast.parse(line)))) == 1
