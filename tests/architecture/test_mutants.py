"""What mutation testing changes and what it leaves alone; the survivors that are listed exist."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.support.mutants.bench import chosen_tests, keep_to_oneself
from tests.support.mutants.imports import dependents
from tests.support.mutants.kinds import Mutant, mutants_of
from tests.support.mutants.targets import TARGETS, Target

SOURCE = '''"""A docstring with 1."""
__all__ = ["one"]
LIMIT: "int" = 5

def one(a: "str", b=2) -> "str":
    """Another, 3."""
    if a < b and not a:
        raise OnHold(f"text {b + 1}", remedy="text")
    self.a = swap(a, b, key=True)
    while a:
        break
    return f"told {a - 1}"
'''
EXPECTED = [
    "module::constant: 5 → 6",
    "module::constant: 5 → 4",
    "one::constant: 2 → 3",
    "one::constant: 2 → 1",
    "one::negation: a < b and (not a) → not (a < b and (not a))",
    "one::and or: a < b and (not a) → a < b or not a",
    "one::comparison: a < b → a <= b",
    "one::comparison: a < b → a >= b",
    "one::negation: not a → a",
    "one::removed: raise OnHold(f'text {b + 1}', remedy='text') → pass",
    "one::removed: self.a = swap(a, b, key=True) → pass",
    "one::swapped: swap(a, b, key=True) → swap(b, a, key=True)",
    "one::without key: swap(a, b, key=True) → swap(a, b)",
    "one::constant: True → False",
    "one::negation: a → not a",
    "one::loop: break → continue",
    "one::return none: return f'told {a - 1}' → return None",
]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_what_a_target_names_exists(target: Target, repository: Path) -> None:
    assert [*repository.glob(target.sources)]
    for pattern in (*target.tests, *target.processes):
        files, _, name = pattern.partition("::")
        assert any(f"def {name}(" in path.read_text() or not name for path in repository.glob(files)), pattern


def test_the_mutants_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text(SOURCE)
    found = mutants_of("it.py", tmp_path, frozenset({"OnHold"}))
    assert [mutant.id for mutant in found] == [f"it.py::{name}" for name in EXPECTED]
    for mutant in found:
        ast.parse(mutant.source)
        assert len(mutant.source.splitlines()) == len(SOURCE.splitlines())
        assert sum(a != b for a, b in zip(mutant.source.splitlines(), SOURCE.splitlines(), strict=True)) == 1


def test_whatever_imports_a_mutant_is_imported_anew(tmp_path: Path) -> None:
    sources = {
        "infra/__init__.py": "",
        "infra/store.py": "",
        "infra/sources/__init__.py": "from infra.sources.read import read",
        "infra/sources/read.py": "def read():\n    from infra import store",
        "infra/sources/resolve.py": "",
        "infra/audit.py": "import json",
        "tasks/run.py": "import infra.sources.resolve",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    expected = {"infra.store", "infra.sources", "infra.sources.read", "infra.sources.resolve", "tasks.run"}
    assert dependents(tmp_path, ["infra/store.py"]) == expected


def test_tests_that_reach_a_mutant_are_chosen_quick_ones_first() -> None:
    mutant = Mutant("x", "infra/store.py", (5, 6), (1, 9), at_import=False, compiled=False, source="")
    reach = {
        "tests/test_other.py::slow": (3.0, [6]),
        "tests/test_other.py::quick": (0.1, [5]),
        "tests/test_store_races.py::own": (2.0, [5, 6, 7]),
        "tests/test_other.py::elsewhere": (0.1, [7]),
        "tests/test_other.py::beyond": (99.0, [5]),
        "tests/test_other.py::served": (0.1, [5]),
    }
    tests = [
        {"test": name, "seconds": seconds, "lines": {"infra/store.py": lines}}
        for name, (seconds, lines) in reach.items()
    ]
    tests[-1]["lines"]["infra/s3.py"] = [1]
    chosen = [name for name, _ in chosen_tests(mutant, tests, 20, late="infra/s3.py")]
    assert chosen == [
        f"tests/test_{name}"
        for name in ("other.py::quick", "store_races.py::own", "other.py::slow", "other.py::served")
    ]


def test_the_survivors_that_are_listed_exist(repository: Path) -> None:
    listed = tomllib.loads((repository / "tests/support/mutants/survivors.toml").read_text())
    files = {name.split("::")[0] for name in listed}
    found = {mutant.id for file in files for mutant in mutants_of(file, repository, frozenset())}
    assert [name for name, reason in listed.items() if name not in found or len(reason) < 20] == []


def test_a_folder_that_somebody_else_prepared_is_refused(tmp_path: Path) -> None:
    own, open_to_all, link = tmp_path / "own", tmp_path / "open", tmp_path / "link"
    for _ in range(2):
        keep_to_oneself(own)
    assert own.stat().st_mode & 0o777 == 0o700
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(own)
    for place in (open_to_all, link):
        with pytest.raises(SystemExit, match=f"{place.name} belongs to somebody else"):
            keep_to_oneself(place)
