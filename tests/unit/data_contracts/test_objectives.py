"""Objectives as people write them: what is refused, with its field, and which runs one is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from data_contracts.rules import Objective
from tasks.slo import read_objectives
from tests.support.refusals import refusal


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{measure: time, target: 0.9}", "needs the time that a run may take"),
        ("{measure: success, target: 0.9, within: 8h}", "only an objective about time has one"),
        ("{measure: time, target: 0.9, within: soon}", "within"),
        ("{measure: success, target: 1}", "target"),
        ("{measure: success, target: .nan}", "target"),
        ("{measure: latency, target: 0.9}", "measure"),
        ("{measure: success, target: 0.9, triggers: [cron]}", "triggers"),
        ("{measure: success, target: 0.9, when: 1d}", "when"),
    ],
)
def test_a_wrong_objective_is_refused_with_its_line_and_field(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(f"version: 1\nobjectives:\n  mine: {line}\n")
    refused = refusal(UsageError, read_objectives, path)
    assert said in refused
    assert "slo.yaml:3" in refused


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("empty.yaml", "objectives"),
        ("newer.yaml", "upgrade Trainwright"),
        ("missing.yaml", "write it as docs/slo.md shows"),
    ],
)
def test_a_file_without_objectives_and_a_newer_one_are_refused(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("version: 1\nobjectives: {}\n")
    (tmp_path / "newer.yaml").write_text("version: 2\nobjectives: {}\n")
    assert said in refusal(UsageError, read_objectives, tmp_path / name)


def test_what_is_shipped_can_be_read() -> None:
    shipped = read_objectives(None).objectives
    assert {one.measure for one in shipped.values()} == {"success", "time", "goodput"}


@pytest.mark.parametrize(
    ("chosen", "is_for"),
    [
        ({}, True),
        ({"pipeline": "orders"}, True),
        ({"pipeline": "other"}, False),
        ({"where": {"team": "a"}}, True),
        ({"where": {"team": "b"}}, False),
        ({"where": {"team": "a", "centre": "7"}}, False),
        ({"triggers": ["schedule", "ci"]}, True),
        ({"triggers": ["cli"]}, False),
    ],
)
def test_which_runs_an_objective_is_for(chosen: dict[str, object], is_for: bool) -> None:
    one = Objective.model_validate({"measure": "success", "target": 0.9, **chosen})
    assert one.is_for("orders", {"team": "a"}, "schedule") is is_for
