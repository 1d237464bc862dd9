"""What our sources do not do, read from them: each file is parsed once for all that is asked of it here.

Ranks never unpickle what another rank sent: there is no collective of objects. What Lightning does not document is
touched by the adapter alone. Names of our modules that stand in strings lead to a module.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch.distributed

from tests.support.files import tracked_files
from tests.support.lightning_internals import INTERNALS

ROOMS = ("flows", "tasks", "training", "infra", "data_contracts")
Nodes = Sequence[ast.AST]
# Check → file → what was found there, each with its line.
Findings = Mapping[str, Mapping[str, Sequence[tuple[int, str]]]]

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

SEAM = "training/lightning_adapter.py"
LIBRARIES = ("lightning", "pytorch_lightning", "torchmetrics")
# What holds the internals has no underscore, and is as little documented.
INSIDES = {"fit_loop", "epoch_loop", "val_loop", "batch_progress", "epoch_progress"}
# Owners whose private attributes are Lightning's, whatever they are called.
OWNERS = {"trainer", "strategy"}
LISTED = {part for line in INTERNALS for part in line.name.split(".") if part.startswith("_")} - {"__init__"}

MODULE = re.compile(rf"(?:{'|'.join(ROOMS)})(?:\.[a-z][a-z0-9_]*)+")


def nodes_of(source: str) -> Nodes:
    return list(ast.walk(ast.parse(source)))


def _owner(node: ast.Attribute) -> str:
    return node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")


def object_collectives(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Each collective of objects that a source calls or imports."""
    for node in nodes:
        if isinstance(node, ast.Attribute):
            of_lightning = node.attr in OF_LIGHTNING and _owner(node) in ("strategy", "fabric", "trainer")
            if node.attr in OF_OBJECTS or of_lightning:
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            yield from ((node.lineno, one.name) for one in node.names if one.name in OF_OBJECTS)


def touched(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """The internals of Lightning or torchmetrics that a module imports, reads, sets or overrides."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            yield from ((node.lineno, f"{node.module}.{one.name}") for one in node.names if one.name.startswith("_"))
        elif isinstance(node, ast.Attribute):
            is_private_of_an_owner = _owner(node) in OWNERS and node.attr.startswith("_")
            if node.attr in LISTED | INSIDES or is_private_of_an_owner:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.FunctionDef) and node.name in LISTED:
            yield node.lineno, f"def {node.name}"


def named_modules(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Each string, or text in backquotes within one, that is the name of a module or of something in one."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in (node.value, *(re.findall(r"`([^` ]+)`", node.value) if "`" in node.value else ())):
                if MODULE.fullmatch(name) and not name.endswith(".py"):
                    yield node.lineno, name


@functools.cache
def leads_somewhere(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.util.find_spec(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        if found is not None and found.origin is not None:
            rest = parts[end:]
            return not rest or re.search(rf"\b{re.escape(rest[0])}\b", Path(found.origin).read_text()) is not None
    return False


def in_folders(*folders: str) -> Callable[[str], bool]:
    return lambda path: path.partition("/")[0] in folders


# Each check, and which files it is asked of.
CHECKS: dict[str, tuple[Callable[[Nodes], Iterator[tuple[int, str]]], Callable[[str], bool]]] = {
    "collectives": (object_collectives, in_folders(*ROOMS, "examples")),
    "Lightning": (touched, lambda path: path != SEAM and path.partition("/")[0] in ROOMS),
    "names": (named_modules, in_folders(*ROOMS, "tests", "benchmarks")),
}


@pytest.fixture(scope="module")
def findings(repository: Path) -> Findings:
    found: dict[str, dict[str, list[tuple[int, str]]]] = defaultdict(dict)
    for path in filter(lambda path: path.endswith(".py"), tracked_files(repository)):
        nodes = nodes_of((repository / path).read_text())
        for name, (check, concerns) in CHECKS.items():
            if concerns(path) and (places := list(check(nodes))):
                found[name][path] = places
    return found


def test_torch_has_no_other_collectives_of_objects() -> None:
    assert {name for name in vars(torch.distributed) if "_object" in name and name[0] != "_"} <= OF_OBJECTS


def test_no_collective_of_objects(findings: Findings) -> None:
    assert not findings["collectives"], "exchange JSON through training.checkpoint.saver instead"


def test_only_the_adapter_touches_the_inside_of_lightning(findings: Findings) -> None:
    assert not findings["Lightning"], "go through training.lightning_adapter instead"


def test_every_name_of_a_module_in_a_string_leads_to_it(findings: Findings) -> None:
    named = [(path, line, name) for path, places in findings["names"].items() for line, name in places]
    assert len(named) > 100
    assert [place for place in named if not leads_somewhere(place[2])] == []


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (object_collectives, "dist.all_gather_object(parts, mine)"),
        (object_collectives, "torch.distributed.broadcast_object_list(box, src=0)"),
        (object_collectives, "from torch.distributed import scatter_object_list as scatter"),
        (object_collectives, "self.trainer.strategy.broadcast(path)"),
        (touched, "from lightning.pytorch.loops.loop import _Loop"),
        (touched, "trainer._data_connector.attach()"),
        (touched, "self.trainer._anything = 1"),
        (touched, "done = loop.trainer.fit_loop.done"),
        (touched, "metric._update_count = 0"),
        (touched, "class Loop:\n    def _on_after_fetch(self): ..."),
    ],
)
def test_what_is_not_done_would_be_found(check: Callable[[Nodes], Iterator[tuple[int, str]]], source: str) -> None:
    assert len(list(check(nodes_of(source)))) == 1
