"""Spans reach a collector over OTLP/HTTP as `OTEL_*` says; one that is away is told once, and nothing waits for it."""

from __future__ import annotations

import logging
import time

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from infra.telemetry import new_context
from infra.traces import ENDPOINT, Spans
from tests.support.stub_server import serving


def test_a_collector_gets_spans_with_their_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    above = new_context()
    with serving(lambda asked: (200, {})) as (address, got):
        monkeypatch.setenv(ENDPOINT, address)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")  # both at the end, in one request
        monkeypatch.setattr("infra.traces.CLOSE_S", 60.0)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=of-the-test")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        spans = Spans()
        root = spans.root("RUN tiny", above)
        spans.ended("shard", root.child("shard"), root, (10.0, 12.5), {"cicd.pipeline.task.name": "shard"})
        spans.ended("RUN tiny", root, above, (9.0, 13.0), {}, error="hung", server=True)
        spans.close()
    assert {(asked.method, asked.path, asked.headers["api-key"]) for asked in got} == {
        ("POST", "/v1/traces", "of-the-test")
    }
    [resource] = ExportTraceServiceRequest.FromString(got[0].body).resource_spans
    named = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (named["service.name"], named["deployment.environment"]) == ("trainwright", "test")
    shard, run = resource.scope_spans[0].spans
    assert (shard.trace_id.hex(), run.trace_id.hex()) == (above.trace, above.trace)
    assert (run.parent_span_id.hex(), shard.parent_span_id.hex()) == (above.span, root.span)
    assert (shard.name, shard.end_time_unix_nano - shard.start_time_unix_nano) == ("shard", 2_500_000_000)
    assert (run.status.code, run.attributes[0].key, run.attributes[0].value.string_value) == (2, "error.type", "hung")


def test_a_collector_that_is_away_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    with caplog.at_level(logging.WARNING), serving(lambda asked: (400, {})) as (address, got):
        monkeypatch.setenv(ENDPOINT, address)
        spans = Spans()
        root = spans.root("RUN tiny", None)
        for number in range(3):
            spans.ended("shard", root.child(number), root, (10.0, 12.5), {})
            while len(got) <= number:
                time.sleep(0.01)
        spans.close()
    assert [record.message for record in caplog.records] == [
        "The collector of OTEL_EXPORTER_OTLP_ENDPOINT takes no spans; the run continues without."
    ]
