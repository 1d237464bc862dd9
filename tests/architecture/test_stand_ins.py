"""Tests get a run from `tests.support.runs.make_run`: a stand-in for one says nothing when a run's fields change."""

from __future__ import annotations

import re
from pathlib import Path

# By what it has, or by its name; also in the programs that tests hold as texts.
STAND_IN = re.compile(
    r"SimpleNamespace\((?:[^()]|\([^()]*\))*\b(?:spec|resolved)=[^)]|\brun(?:: \w+)? = (?:types\.)?SimpleNamespace\("
)


def test_no_stand_in_is_a_run(repository: Path) -> None:
    sources = [path for path in (repository / "tests").rglob("*.py") if path != Path(__file__)]
    found = [str(path.relative_to(repository)) for path in sources if STAND_IN.search(path.read_text())]
    assert found == [], "build the run with tests.support.runs.make_run"
