"""OpenTelemetry's variables: an endpoint that cannot be used is named, and its value is not repeated."""

from __future__ import annotations

import pytest

from data_contracts.errors import UsageError
from infra.traces import ENDPOINT, check_otlp, traces_asked

AT = {ENDPOINT: "http://collector:4318"}


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        (AT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({**AT, "OTEL_SDK_DISABLED": "true"}, False),
        ({**AT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_SERVICE_NAME": "training"}, False),
    ],
)
def test_spans_are_sent_where_there_is_an_endpoint(environ: dict[str, str], asked: bool) -> None:
    assert traces_asked(environ) is asked
    check_otlp(environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "s3cr3t:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://s3cr3t:port"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "grpc://s3cr3t"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ],
)
def test_an_endpoint_or_a_protocol_that_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{name.replace('TRACES_', '')} is not ") as caught:
        check_otlp({**AT, name: value})
    assert "s3cr3t" not in str(caught.value)
