"""The outputs for the next step: nothing in them means something to a shell."""

from __future__ import annotations

import json
import re

import pytest

from tasks.ci import output_values
from tests.support.ci_reports import HOSTILE, promoted, report


def test_the_outputs_of_a_promoted_run() -> None:
    assert output_values(promoted()) == {
        "run_id": "20261126-010029-7717a3",
        "verdict": "promoted",
        "exit_code": "0",
        "model": "tiny",
        "version": "2",
        "metrics": '{"accuracy":0.5}',
        "cost_usd": "0.5000",
        "node_seconds": "8",
    }


def test_what_is_not_known_is_empty_and_what_is_not_a_name_is_left_out() -> None:
    made = output_values(
        report(run_id=HOSTILE, metrics={"val/loss@1": 0.1, "$(id)": 1.0, "a b": 2.0, HOSTILE: 3.0}, cost={})
    )
    assert (made["run_id"], made["version"], made["cost_usd"]) == ("", "", "")
    assert json.loads(made["metrics"]) == {"val/loss@1": 0.1}
    for name in ("run_id", "verdict", "exit_code", "model", "version", "cost_usd", "node_seconds"):
        assert re.fullmatch(r"[\w.@/-]*", made[name], re.ASCII)


def test_a_metric_that_is_not_finite_is_json_for_every_reader() -> None:
    made = json.loads(
        output_values(report(metrics={"a": float("nan"), "b": 0.5}))["metrics"], parse_constant=pytest.fail
    )
    assert made == {"b": 0.5}
