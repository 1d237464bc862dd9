"""A real run as a real Prometheus sees it, and as a collector and a reader of its logs do."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from infra.metrics import METRICS
from infra.traces import metrics_token
from tests.support.prometheus import ask, free_port, prometheus
from tests.support.stub_server import Asked, serving
from tests.support.tiny import SPEC, trainwright, write_project

# What a run on processors alone, without a failure and with one rank, does not have.
ABSENT = ("gpu_", "rank_mfu", "rank_device", "node_energy")
# So long that several scrapes see the training.
EPOCHS = 20


def names(got: list[Asked]) -> dict[str, str]:
    """The name of each span that a collector got, and the name of the span that it is below."""
    spans = [
        span
        for asked in got
        for resource in ExportTraceServiceRequest.FromString(asked.body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert len({span.trace_id for span in spans}) == 1
    by_id = {span.span_id: span.name for span in spans}
    return {span.name: by_id.get(span.parent_span_id, "") for span in spans}


@pytest.mark.slow
@pytest.mark.apt("prometheus")
def test_a_run_is_seen_by_prometheus_by_a_collector_and_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, port = tmp_path / "home", free_port()
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(home))
    token = metrics_token()
    lightning = {**SPEC["train"]["lightning"], "trainer": {"max_epochs": EPOCHS}}
    spec = write_project(
        tmp_path / "tiny", {"train": {**SPEC["train"], "lightning": lightning, "machine": "aws-m7g.large"}}
    )
    env = {"TRAINWRIGHT_METRICS_PORT": str(port), "TRAINWRIGHT_LOG_FORMAT": "json"}
    with (
        prometheus(tmp_path, {port: home / "metrics-token"}) as seen,
        serving(lambda asked: (200, {})) as (address, got),
    ):
        done = trainwright("run", spec, env={**env, "OTEL_EXPORTER_OTLP_ENDPOINT": address})
        time.sleep(1)
        wanted = [metric.name for metric in METRICS if not metric.name.removeprefix("trainwright_").startswith(ABSENT)]
        series = {name: ask(seen, f'last_over_time({{__name__=~"{name}(_count)?"}}[10m])') for name in wanted}
        p95 = ask(seen, "histogram_quantile(0.95, max_over_time(trainwright_step_duration_seconds_bucket[10m]))")
        joined = ask(seen, "max_over_time(trainwright_goodput_ratio[10m]) * on (instance, pipeline) group_left (run) "
                           "max_over_time(trainwright_run_info[10m])")  # fmt: skip
    trainwright("down")
    assert done.returncode == 0, done.stderr
    assert [name for name, found in series.items() if not found] == []
    assert {one["metric"]["pipeline"] for found in series.values() for one in found} == {"tiny"}
    assert 0 < float(p95[0]["value"][1]) < 60
    assert joined[0]["metric"]["run"] in done.stdout
    below = names(got)
    assert (below["node 0"], below["rank 0"], below["checkpoint"]) == ("train", "node 0", "rank 0")
    assert {below[name] for name in ("validate", "shard", "train", "verify", "evaluate", "promote")} == {"RUN tiny"}
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert any(line.get("run") == joined[0]["metric"]["run"] for line in lines)
    texts = [done.stdout, done.stderr, repr([asked.body for asked in got]), json.dumps(series)]
    assert not any(token in text or str(tmp_path) in text for text in texts[2:])
    assert token not in "".join(texts)
    assert os.stat(home / "metrics-token").st_mode & 0o077 == 0
