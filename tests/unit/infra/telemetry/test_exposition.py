"""The page of metrics, as Prometheus' own tools read it."""

from __future__ import annotations

import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families as text_format

from data_contracts.messages.gang import STEP_BOUNDS
from infra.metrics import METRICS, Counts, Metric, MetricSample, page

TINY = {"pipeline": "tiny", "pool": "gpus", "queue": "default"}


def sample(metric: Metric) -> MetricSample:
    value = {"histogram": Counts(3, 0.5, [0, 2, 1]), "summary": Counts(2, 7.5)}.get(metric.kind, 1.5)
    return MetricSample(metric.name.removeprefix("trainwright_"), value, tuple("x" for _ in metric.labels))


ALL = [sample(metric) for metric in METRICS]


@pytest.mark.apt("prometheus")
def test_promtool_finds_nothing_to_improve() -> None:
    body, _ = page(TINY, ALL)
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_histogram_counts_up_to_each_bound() -> None:
    body, _ = page(TINY, [MetricSample("step_duration_seconds", Counts(3, 0.5, [0, 2, 1]))])
    [family] = text_format(body.decode())
    values = {one.labels.get("le", one.name): one.value for one in family.samples}
    assert [values[str(bound)] for bound in STEP_BOUNDS[:4]] == [0, 2, 3, 3]
    assert (values["+Inf"], values["trainwright_step_duration_seconds_sum"]) == (3, 0.5)
