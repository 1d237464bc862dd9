"""GitLab's Code Quality report and its dotenv report."""

from __future__ import annotations

import json

from tasks.ci import MOST_DOTENV_BYTES, Finding, code_quality, dotenv, output_values
from tests.support.ci_reports import report


def test_each_finding_with_a_place_is_an_entry_that_keeps_its_fingerprint_when_its_line_moves() -> None:
    first, second = (
        json.loads(
            code_quality([Finding("error", "gate failed", "it is 0.5", "a.yaml", line), Finding("error", "t", "s")])
        )
        for line in (3, 9)
    )
    assert len(first) == 1
    assert first[0].keys() == {"description", "check_name", "fingerprint", "severity", "location"}
    assert (first[0]["severity"], first[0]["location"]) == ("critical", {"path": "a.yaml", "lines": {"begin": 3}})
    assert first[0]["fingerprint"] == second[0]["fingerprint"]
    assert code_quality([]) == "[]\n"


def test_variables_have_a_prefix_and_metrics_that_do_not_fit_are_left_out() -> None:
    assert "TRAINWRIGHT_VERDICT=not_promoted\n" in dotenv(output_values(report()))
    assert 'TRAINWRIGHT_METRICS={"accuracy":0.5}\n' in dotenv(output_values(report()))
    many = dotenv(output_values(report(metrics={f"metric_{n}": 0.123456789 for n in range(500)})))
    assert "TRAINWRIGHT_METRICS={}\n" in many
    assert len(many.encode()) <= MOST_DOTENV_BYTES
