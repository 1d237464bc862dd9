"""docs/architecture.md is so: its picture is that of the imports, and every function that it names exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = "docs/architecture.md"
LINK = re.compile(r"\[`([A-Za-z_.]+)`[^]]*\]\(\.\./([\w/]+\.py)\)")
WALKS = ("a spec", "a batch", "a checkpoint", "a gate's decision", "a failure")
RUN = re.compile(r"-m (?!prefect)([a-z_.]+\.[a-z_.]+)( [a-z_.]+\.[a-z_.]+)?`")


def defined(path: Path) -> set[str]:
    """Names that a module defines at its top, and `Class.method` for what is in its classes."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def unknown(page: str, repository: Path) -> list[str]:
    """Links of a page to a name that its file does not define; a link may name the file instead."""
    links = [(name, repository / file) for name, file in LINK.findall(page)]
    return [f"{path.name}: {name}" for name, path in links if name != path.name and name not in defined(path)]


def test_the_picture_is_that_of_the_imports(repository: Path) -> None:
    command = [sys.executable, ".ci/rooms.py"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout == (repository / "docs/rooms.svg").read_text(), "run `make reference`"


def test_every_function_that_the_page_names_exists(repository: Path) -> None:
    page = (repository / PAGE).read_text()
    assert len(LINK.findall(page)) > 140
    assert unknown(page, repository) == []


@pytest.mark.parametrize("subject", WALKS)
def test_each_step_of_a_walk_leads_to_code(subject: str, repository: Path) -> None:
    _, found, rest = (repository / PAGE).read_text().partition(f"\n## The life of {subject}\n")
    steps = re.split(r"\n\d+\. ", rest.partition("\n## ")[0])[1:]
    assert found
    assert 5 < len(steps) < 12
    assert [step for step in steps if not LINK.search(step)] == []


def test_a_function_that_is_gone_would_be_found(repository: Path) -> None:
    page = "[`resolve`](../tasks/run/resolve.py) [`Ledger.gone`](../infra/gang/ledger.py)"
    assert unknown(page, repository) == ["ledger.py: Ledger.gone"]


def test_every_process_that_the_page_names_is_a_module(repository: Path) -> None:
    found = [name.strip() for names in RUN.findall((repository / PAGE).read_text()) for name in names if name]
    assert len(found) > 10
    assert [name for name in found if not (repository / f"{name.replace('.', '/')}.py").is_file()] == []
