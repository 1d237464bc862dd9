"""Random decisions, with races and lost answers, agree with a model of the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.store import open_store
from tests.support.decisions import decisions

RARE = ("held", "evidence", "refused", "unchanged", "promoted, overtaken", "promoted, unheard", "promoted, before",
        "unknown, never", "release", "rollback")  # fmt: skip


@pytest.mark.parametrize("number", [2_000, pytest.param(1_000_000, marks=pytest.mark.sweep)])
def test_decisions_in_memory(number: int) -> None:
    told = decisions(number, seed=1)
    assert [what for what in RARE if told[what] < number / 1_000] == []


@pytest.mark.parametrize("number", [160, pytest.param(8_000, marks=pytest.mark.sweep)])
def test_decisions_in_a_folder(number: int, tmp_path: Path) -> None:
    worlds = iter(range(number))

    def folder() -> Any:
        return open_store(str(tmp_path / str(next(worlds))))._backend

    assert decisions(number, seed=2, backend=folder)["promoted"] > number / 10
