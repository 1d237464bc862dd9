"""docs/architecture.md is so: its picture is that of the imports, and every function that it names exists.

Its paths are short: each names no more files and folders than one can read in a sitting.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = "docs/architecture.md"
LINK = re.compile(r"\[`([A-Za-z_.]+)`[^]]*\]\(\.\./([\w/]+\.py)\)")
FILE = re.compile(r"\]\(\.\./([\w/]+\.py)\)")
# The most files and folders of each path.
PATHS = {
    "a checkpoint is saved": (12, 4),
    "a run resumes": (10, 4),
    "a gate decides": (9, 3),
    "validate scans a Parquet file": (10, 4),
    "the conductor recovers": (9, 3),
}
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


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    _, found, rest = page.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(r"\n##+ ", rest)[0]


def steps_of(text: str) -> list[str]:
    """The numbered steps of a section."""
    return re.split(r"\n\d+\. ", text)[1:]


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
    steps = steps_of(section((repository / PAGE).read_text(), f"## The life of {subject}"))
    assert 5 < len(steps) < 12
    assert [step for step in steps if not LINK.search(step)] == []


@pytest.mark.parametrize("subject", PATHS)
def test_a_path_names_few_files_and_says_how_many(subject: str, repository: Path) -> None:
    text = section((repository / PAGE).read_text(), f"### How {subject}")
    files = set(FILE.findall(text))
    folders = {Path(file).parent for file in files}
    assert [step for step in steps_of(text) if not LINK.search(step)] == []
    assert f"\nThese are {len(files)} files in {len(folders)} folders.\n" in text
    most_files, most_folders = PATHS[subject]
    assert len(files) <= most_files
    assert len(folders) <= most_folders


def test_every_path_is_counted(repository: Path) -> None:
    assert re.findall(r"\n### How (.+)\n", (repository / PAGE).read_text()) == list(PATHS)


def test_a_function_that_is_gone_would_be_found(repository: Path) -> None:
    page = "[`resolve`](../tasks/run/resolve.py) [`Ledger.gone`](../infra/gang/ledger.py)"
    assert unknown(page, repository) == ["ledger.py: Ledger.gone"]


def test_every_process_that_the_page_names_is_a_module(repository: Path) -> None:
    found = [name.strip() for names in RUN.findall((repository / PAGE).read_text()) for name in names if name]
    assert len(found) > 10
    assert [name for name in found if not (repository / f"{name.replace('.', '/')}.py").is_file()] == []
