"""Faults as data (`tests/golden/faults.toml`): put one into a copy of the tree, and run its tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parents[1] / "golden/faults.toml"
TEST_LIMIT_S = 400
# A mistake in the fault itself, or a test that takes too long, proves nothing about the tests.
_NO_PROOF = re.compile(r"\b(NameError|ImportError|ModuleNotFoundError|SyntaxError)\b|from pytest-timeout")
# So does a name in it that the tree no longer has: an attribute, or a function with other parameters.
_OUTDATED = re.compile(r"has no attribute '(\w+)'|\b(\w+)\(\) (?:missing|takes|got) ")


@dataclass(frozen=True)
class Fault:
    """One entry; `faults.toml` begins with what its fields are."""

    area: str
    says: str
    file: str
    old: str
    new: str
    tests: list[str]
    default: bool = False

    def __str__(self) -> str:
        return f"{self.area}: {self.says}"


def read_faults() -> list[Fault]:
    """All faults, in their order."""
    return [Fault(**entry) for entry in tomllib.loads(DATA.read_text())["fault"]]


def find_tests(root: Path, names: set[str]) -> dict[str, list[str]]:
    """Where test functions of these names are, as pytest names them."""
    ids: dict[str, list[str]] = {name: [] for name in names}
    for path in (root / "tests").rglob("test_*.py"):
        for name in names & set(re.findall(r"^def (\w+)\(", path.read_text(), re.MULTILINE)):
            ids[name].append(f"{path.relative_to(root)}::{name}")
    return ids


def find_fault(tree: Path, fault: Fault, scratch: Path) -> tuple[bool, str]:
    """Whether a test of a fault fails with it in a copied tree, and what pytest printed; all it writes is in `scratch`.

    The processes that the tests start import the copy, too.
    """
    path = tree / fault.file
    original = path.read_text()
    tests = [test for ids in find_tests(tree, set(fault.tests)).values() for test in ids]
    # A run takes over a second, so Python sees by the file's date that the compiled code is out of date.
    path.write_text(original.replace(fault.old, fault.new))
    try:
        done = run_tests(tree, tests, scratch)
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
    return bool(_NO_PROOF.search(printed)) or any(re.search(rf"\b{name}\b", fault.new) for name in missing)
