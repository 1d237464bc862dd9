"""A spec that gives each run the same rows is told that its canary gets no fresh ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.load import load_spec
from tasks.run.spec_check import why_no_fresh_rows
from tests.support.tiny import SPEC, write_project

CANARY = {"promote": {"canary": {"within": "14d", "metric": "accuracy"}}}
OF_SET = {"promote": {"canary": {"within": "14d", "metric": "recent/accuracy"}}}


def by_time(split: str) -> dict[str, Any]:
    boundaries = {"val": "2026-01-01", "test": "2026-02-01"}
    shards = {**SPEC["shards"], "split": {"time": "a", "boundaries": boundaries}}
    return {"shards": shards, "evaluate": {**SPEC["evaluate"], "split": split}, "data": {"source": "rows-*.csv"}}


def with_set(**recent: Any) -> dict[str, Any]:
    return {"evaluate": {**SPEC["evaluate"], "sets": {"recent": recent}}, **OF_SET}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, None),
        (CANARY, "data.source names one file or folder and no window"),
        ({**CANARY, "data": {"source": ["a.csv", "b.csv"]}}, "data.source names 2 files or folders"),
        ({**CANARY, "data": {"source": ["a.csv", "rows-*.csv"]}}, None),
        ({**CANARY, "data": {"source": "rows-{{ start }}.csv", "window": {"path": "%Y"}}}, None),
        ({**CANARY, **by_time("val")}, "the split val ends at 2026-02-01"),
        ({**CANARY, **by_time("test")}, None),
        (with_set(source="recent.csv"), "evaluate.sets.recent.source names one file"),
        (with_set(source="recent/*.csv"), None),
        (with_set(split="val"), "data.source names one file"),
    ],
)
def test_whether_fresh_rows_can_come(spec: dict[str, Any], says: str | None, tmp_path: Path) -> None:
    sentence = why_no_fresh_rows(load_spec(write_project(tmp_path / "tiny", spec)))
    assert sentence is None if says is None else says in (sentence or "")
