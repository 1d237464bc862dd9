"""Every test asserts something: itself, by `pytest.raises` and its like, or through a helper of the tests that does.

A helper counts if it is defined in the test's file, in a `conftest.py` above it, in a module of the tests that it
imports, or in one that such a module imports. A child process that must end with 0 is not enough: it says that nothing
failed, not what was done.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

EXPECTED = {"pytest.raises", "pytest.warns", "pytest.fail"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def without_assertion(sources: dict[str, str]) -> list[str]:
    """Tests (`path::name`) of these sources (path below the repository → text) that assert nothing."""
    trees = {path: ast.parse(text) for path, text in sources.items()}
    nodes = {path: list(ast.walk(tree)) for path, tree in trees.items()}
    calls = {
        path: [(node.name, node, _calls(node)) for node in nodes[path] if isinstance(node, Function)] for path in trees
    }
    near = {path: _in_view(path, nodes[path], set(trees)) for path in trees}
    seen = {path: near[path].union(*(near[other] for other in near[path])) for path in trees}
    asserting = {path: {name for name, _, called in calls[path] if None in called} for path in trees}
    grown = True
    while grown:
        grown = False
        for path in trees:
            known = set().union(*(asserting[other] for other in seen[path]))
            for name, _, called in calls[path]:
                if name not in asserting[path] and called & known:
                    asserting[path].add(name)
                    grown = True
    without = []
    for path, tree in trees.items():
        tests = set(_tests(tree))
        known = set().union(*(asserting[other] for other in seen[path]))
        without += [
            f"{path}::{name}" for name, node, called in calls[path] if node in tests and not called & {None, *known}
        ]
    return without


def _tests(tree: ast.Module) -> Iterator[Function]:
    """What pytest collects: functions of the module and of its classes."""
    for node in tree.body:
        for one in node.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test") else [node]:
            if isinstance(one, Function) and one.name.startswith("test_"):
                yield one


def _expects(called: ast.expr) -> bool:
    return _name(called).startswith("assert_") or (
        f"pytest.{_name(called)}" in EXPECTED and ast.unparse(called) in EXPECTED
    )


def _calls(function: Function) -> set[str | None]:
    """The names of what a function calls; None among them if it asserts something itself."""
    called: set[str | None] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called |= {_name(node.func), *([None] if _expects(node.func) else [])}
        elif isinstance(node, ast.Assert):
            called.add(None)
    return called


def _name(called: ast.expr) -> str:
    """The last part of the name of what is called."""
    return called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")


def _in_view(path: str, nodes: list[ast.AST], paths: set[str]) -> set[str]:
    """The file itself, each `conftest.py` above it, and the modules of the tests that it imports."""
    above = {f"{parent}/conftest.py" for parent in Path(path).parents}
    modules = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return ({path} | above | {f"{module.replace('.', '/')}.py" for module in modules}) & paths


def test_every_test_asserts_something(repository: Path) -> None:
    paths = [path for path in sorted((repository / "tests").rglob("*.py")) if "golden" not in path.parts]
    found = without_assertion({str(path.relative_to(repository)): path.read_text() for path in paths})
    assert found == []


HELPER = """
def checked(value):
    assert value

def through(value):
    checked(value)

def plain(value):
    print(value)
"""


def test_a_test_without_an_assertion_is_found() -> None:
    test = (
        "from tests.support.helper import checked, plain, through\n"
        "def test_itself():\n    assert 1\n"
        "def test_raises():\n    with pytest.raises(ValueError):\n        int('x')\n"
        "def test_helper():\n    through(1)\n"
        "def test_mock(mock):\n    mock.assert_called_once_with(1)\n"
        "def test_nothing():\n    plain(1)\n"
        "def test_runs():\n    subprocess.run(['true'], check=True)\n"
        "class TestIt:\n    def test_inside(self):\n        plain(1)\n"
    )
    sources = {"tests/support/helper.py": HELPER, "tests/unit/test_it.py": test}
    names = ["test_nothing", "test_runs", "test_inside"]
    assert without_assertion(sources) == [f"tests/unit/test_it.py::{name}" for name in names]
    elsewhere = {"tests/support/helper.py": HELPER, "tests/unit/test_it.py": "def test_helper():\n    through(1)\n"}
    assert without_assertion(elsewhere) == ["tests/unit/test_it.py::test_helper"], "a name of a file not imported"
