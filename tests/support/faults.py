"""Faults as data (`tests/golden/faults.toml`): find the place of one in the sources, put it in, and run its tests."""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = ("flows", "tasks", "training", "infra", "data_contracts")
DATA = Path(__file__).parents[1] / "golden/faults.toml"
TEST_LIMIT_S = 120
# A mistake in the fault itself, or a test that takes too long, proves nothing about the tests.
_NO_PROOF = re.compile(r"\b(NameError|ImportError|ModuleNotFoundError|SyntaxError)\b|from pytest-timeout")
# So does a name in it that the tree no longer has: an attribute, or a function with other parameters.
_OUTDATED = re.compile(r"has no attribute '(\w+)'|\b(\w+)\(\) (?:missing|takes|got) ")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Fault:
    """One entry; `faults.toml` begins with what its fields are."""

    area: str
    says: str
    function: str
    replace: str
    by: str
    tests: list[str]
    default: bool = False

    def __str__(self) -> str:
        return f"{self.area}: {self.says}"

    def outdated(self, what: str) -> ValueError:
        """The error for a fault that does not fit the tree."""
        return ValueError(f"Bring the fault {str(self)!r} up to date in {DATA.name}: {what}.")


def read_faults() -> list[Fault]:
    """All faults, in their order."""
    return [Fault(**entry) for entry in tomllib.loads(DATA.read_text())["fault"]]


@functools.cache
def _texts(root: Path, folders: tuple[str, ...]) -> dict[Path, str]:
    return {path: path.read_text() for folder in folders for path in (root / folder).rglob("*.py")}


def named_tests(root: Path, fault: Fault) -> list[str]:
    """The fault's tests as pytest names them; ValueError unless there is one of each name."""
    ids = []
    for test in fault.tests:
        files = [path for path, text in _texts(root, ("tests",)).items() if f"\ndef {test}(" in text]
        if len(files) != 1:
            raise fault.outdated(f"{len(files)} files instead of one have a test {test}")
        ids.append(f"{files[0].relative_to(root)}::{test}")
    return ids


def with_fault(root: Path, fault: Fault) -> tuple[Path, str]:
    """The file that a fault changes, and its text with the fault; ValueError unless there is one such place."""
    old = ast.parse(fault.replace).body
    is_expression = len(old) == 1 and isinstance(old[0], ast.Expr)
    wanted = [ast.unparse(node) for node in old]
    *around, name = fault.function.split(".")
    places = []
    for path, text in _texts(root, SOURCES).items():
        if f"def {name}(" in text and all(part in text for part in around):
            module = ast.parse(text)
            for function in _functions(module, [*around, name]):
                kind = ast.expr if is_expression else ast.stmt
                places += [(path, module, *place) for place in _places(function, wanted, kind)]
    if len(places) != 1:
        raise fault.outdated(f"{len(places)} places instead of one have {fault.replace!r} in {fault.function}")
    path, module, node, field, at = places[0]
    new = [ast.parse(fault.by, mode="eval").body] if is_expression else ast.parse(fault.by).body
    value = getattr(node, field)
    setattr(node, field, [*value[:at], *new, *value[at + len(old) :]] if isinstance(value, list) else new[0])
    return path, ast.unparse(module)


def _functions(node: ast.AST, names: list[str]) -> Iterator[ast.AST]:
    """The functions with this qualified name below a node, also in an `if` or `try`."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _SCOPES):
            yield from _functions(child, names) if isinstance(child, ast.stmt) else ()
        elif child.name == names[0]:
            yield from _functions(child, names[1:]) if names[1:] else [child]


def _places(function: ast.AST, wanted: list[str], kind: type[ast.AST]) -> Iterator[tuple[ast.AST, str, int]]:
    """Where these nodes of a kind stand in a function: the node above, its field, and their index if it is a list."""
    for node in ast.walk(function):
        for field, value in ast.iter_fields(node):
            parts = value if isinstance(value, list) else [value]
            texts = [ast.unparse(part) if isinstance(part, kind) else None for part in parts]
            yield from ((node, field, at) for at in range(len(parts)) if texts[at : at + len(wanted)] == wanted)


def copy_tree(root: Path, to: Path) -> None:
    """Copy what Git tracks or would track."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def find_fault(tree: Path, fault: Fault, scratch: Path) -> tuple[bool, str]:
    """Whether a test of a fault fails with it in a copied tree, and what pytest printed; all it writes is in `scratch`.

    The processes that the tests start import the copy, too.
    """
    path, text = with_fault(tree, fault)
    original = path.read_text()
    # A run takes over a second, so Python sees by the file's date that the compiled code is out of date.
    path.write_text(text)
    try:
        done = run_tests(tree, named_tests(tree, fault), scratch)
    finally:
        path.write_text(original)
    # Not if a fixture fails, a module cannot be imported or no test runs.
    failed = done.returncode == 1 and re.search(r"\b[1-9]\d* failed\b", done.stdout) is not None
    return failed and not _is_mistake(fault, done.stdout), f"{done.stdout}{done.stderr}"


def run_tests(tree: Path, tests: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run these tests of a copied tree up to the first that fails; all they write is in `scratch`."""
    # What the outer run tells its own processes is no business of this one.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    environ |= {"PYTHONPATH": str(tree), "TMPDIR": str(scratch), "NUMBA_CACHE_DIR": str(tree / ".numba")}
    options = ["-q", "-x", "-n0", "-p", "no:cacheprovider", f"--basetemp={scratch}/t", f"--timeout={TEST_LIMIT_S}"]
    command = [sys.executable, "-m", "pytest", *options, "--tb=short", "--hypothesis-seed=1", *tests]
    return subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, check=False)


def _is_mistake(fault: Fault, printed: str) -> bool:
    """Whether the tests failed because the fault does not fit the tree, and not because of what it does."""
    missing = {name for names in _OUTDATED.findall(printed) for name in names if name}
    return bool(_NO_PROOF.search(printed)) or any(re.search(rf"\b{name}\b", fault.by) for name in missing)
