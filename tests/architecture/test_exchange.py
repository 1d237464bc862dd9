"""Ranks never unpickle what another rank sent: no collective of objects in our sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch.distributed

ROOMS = ("flows", "tasks", "training", "infra", "data_contracts", "examples")
OF_OBJECTS = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
}
# Those of Lightning's strategies and Fabric pickle whatever they are given.
OF_LIGHTNING = {"broadcast", "all_gather"}


def _object_collectives(source: str) -> list[tuple[int, str]]:
    """Line and name of each collective of objects that a source calls or imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            of_lightning = node.attr in OF_LIGHTNING and owner in ("strategy", "fabric", "trainer")
            if node.attr in OF_OBJECTS or of_lightning:
                found.append((node.lineno, node.attr))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found += [(node.lineno, one.name) for one in node.names if one.name in OF_OBJECTS]
    return found


def test_torch_has_no_others() -> None:
    assert {name for name in vars(torch.distributed) if "_object" in name and name[0] != "_"} <= OF_OBJECTS


def test_no_collective_of_objects(repository: Path) -> None:
    found = {
        f"{path.relative_to(repository)}:{line}": name
        for room in ROOMS
        for path in sorted((repository / room).rglob("*.py"))
        for line, name in _object_collectives(path.read_text())
    }
    assert not found, f"exchange JSON through training.checkpoint.saver instead: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "dist.all_gather_object(parts, mine)",
        "torch.distributed.broadcast_object_list(box, src=0)",
        "from torch.distributed import scatter_object_list as scatter",
        "self.trainer.strategy.broadcast(path)",
    ],
)
def test_a_collective_of_objects_would_be_found(source: str) -> None:
    assert len(_object_collectives(source)) == 1
