"""Where objectives stand: no data is not success, and a count on the edge is met."""

from __future__ import annotations

from datetime import timedelta

import pytest

from data_contracts.rules import Objectives
from tasks.costs.charges import charges
from tasks.slo import Result, read_objectives, results
from tests.support.ledger_runs import generation, usage
from tests.unit.tasks.slo.test_indicators import NOW, run


def success(*verdicts: str, target: float = 0.95) -> Result:
    objectives = Objectives.model_validate(
        {"version": 1, "objectives": {"mine": {"measure": "success", "target": target}}}
    )
    return results(objectives, [run(one, cause="node_lost" * (one == "failed")) for one in verdicts], NOW)[0]


@pytest.mark.parametrize(
    ("verdicts", "state", "share", "left"),
    [
        ([], "no data", None, None),
        (["cancelled"] * 3, "no data", None, None),
        (["promoted"], "met", 1.0, 1.0),
        (["promoted"] * 19 + ["failed"], "met", 0.95, 0.0),
        (["promoted"] * 18 + ["failed"] * 2, "missed", 0.9, -1.0),
        (["failed"], "missed", 0.0, -19.0),
    ],
)
def test_a_state_and_what_is_left_of_its_budget(
    verdicts: list[str], state: str, share: float | None, left: float | None
) -> None:
    found = success(*verdicts)
    assert (found.state, found.share) == (state, None if share is None else pytest.approx(share))
    assert (found.budget_left, found.to_json()["state"]) == (None if left is None else pytest.approx(left), state)


def test_runs_before_the_window_do_not_count() -> None:
    old = run(began=(NOW - timedelta(days=29)).timestamp(), ended=(NOW - timedelta(days=28, seconds=1)).timestamp())
    assert [one.state for one in results(read_objectives(None), [old], NOW)] == ["no data"] * 4


def test_two_failed_nights_page_and_say_so() -> None:
    found = success("failed", "failed")
    assert (found.severity, found.to_json()["alerts"][0]["severity"]) == ("page", "page")
    assert "spent 20.0 times too fast over 24 h" in found.alerts[0].sentence


def test_a_flawless_training_on_one_node_meets_what_is_shipped() -> None:
    """Beside the node of a pool, the machine that carries the run out is paid, too, so at most half is work."""
    began, ended = NOW - timedelta(hours=11), NOW - timedelta(hours=1)
    flawless = charges(usage("r1", began, ended, generation(began, ended)))
    found = {one.name: one for one in results(read_objectives(None), [run(charges=flawless)], NOW)}["goodput"]
    assert (found.share, found.state, found.severity) == (pytest.approx(0.5, abs=0.001), "met", "")
