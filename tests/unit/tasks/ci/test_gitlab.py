"""GitLab's dotenv report."""

from __future__ import annotations

from tasks.ci import MOST_DOTENV_BYTES, dotenv, output_values
from tests.support.ci_reports import report


def test_variables_have_a_prefix_and_metrics_that_do_not_fit_are_left_out() -> None:
    assert "TRAINWRIGHT_VERDICT=not_promoted\n" in dotenv(output_values(report()))
    assert 'TRAINWRIGHT_METRICS={"accuracy":0.5}\n' in dotenv(output_values(report()))
    many = dotenv(output_values(report(metrics={f"metric_{n}": 0.123456789 for n in range(500)})))
    assert "TRAINWRIGHT_METRICS={}\n" in many
    assert len(many.encode()) <= MOST_DOTENV_BYTES
