"""A variable that our processes give each other is spelled once; everybody else imports its name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from infra.gang.rank_files import store_env, store_options

SPELLED = re.compile(r'"(TRAINWRIGHT_[A-Z_]+)"')
SOURCES = ("data_contracts", "infra", "training", "tasks", "flows")


def test_each_variable_is_spelled_in_one_place(repository: Path) -> None:
    files = [path for folder in SOURCES for path in (repository / folder).rglob("*.py")]
    spelled = Counter(name for path in files for name in SPELLED.findall(path.read_text()))
    assert len(spelled) > 10
    assert [name for name, times in spelled.items() if times > 1] == []


def test_the_stores_options_are_read_as_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINWRIGHT_APPROVED", raising=False)
    written = store_env({"key": "env:KEY"}, "postgresql://db")
    assert store_options(written) == {"key": "env:KEY"}
    assert written["TRAINWRIGHT_STORE_POINTERS"] == "postgresql://db"
    assert store_env({}, None) == {"TRAINWRIGHT_STORE_OPTIONS": "{}", "TRAINWRIGHT_APPROVED": "{}"}
    assert store_options({}) == {}
