"""OpenTelemetry's variables: each that is malformed is named, and no value of one is repeated."""

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
        (ENDPOINT, "collector:4318"),
        (ENDPOINT, "http://collector:port"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "grpc://collector"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "s3cr3t"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "=s3cr3t"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/not/there.pem"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
    ],
)
def test_what_is_malformed_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} is not ") as caught:
        check_otlp({**AT, name: value})
    assert "s3cr3t" not in str(caught.value)


def test_of_all_that_may_be_set_only_what_is_malformed_is_refused() -> None:
    well_formed = {
        **AT,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, other = c=d",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=prod,team=a",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }
    check_otlp(well_formed)
    with pytest.raises(UsageError, match="^OTEL_TRACES_SAMPLER_ARG is not "):
        check_otlp({**well_formed, "OTEL_TRACES_SAMPLER_ARG": "1.25"})
