"""Tests get a run from `tests.support.runs.make_run`: a stand-in for one says nothing when a run's fields change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def stand_ins(text: str) -> Iterator[int]:
    """The lines of a source on which a `SimpleNamespace` stands for a run."""
    for node in ast.walk(ast.parse(text)):
        if _is_namespace(node) and {"spec", "resolved"} & {keyword.arg for keyword in node.keywords}:
            yield node.lineno
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_namespace(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(getattr(one, "id", getattr(one, "attr", "")) == "run" for one in targets):
                yield node.lineno


def _is_namespace(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("SimpleNamespace")


def test_no_stand_in_is_a_run(repository: Path) -> None:
    sources = (repository / "tests").rglob("*.py")
    found = [f"{path.relative_to(repository)}:{line}" for path in sources for line in stand_ins(path.read_text())]
    assert found == [], "build the run with tests.support.runs.make_run"


def test_a_stand_in_is_found_by_what_it_has_and_by_its_name() -> None:
    assert list(stand_ins("x = SimpleNamespace(store=1, resolved=2)")) == [1]
    assert list(stand_ins("self.run = types.SimpleNamespace(store=1)")) == [1]
    assert list(stand_ins("context = SimpleNamespace(flow_run=SimpleNamespace(id=1))")) == []
