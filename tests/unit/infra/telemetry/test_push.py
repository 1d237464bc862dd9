"""Metrics that are pushed: in their pipeline's group, with a secret if one is named, past a gateway that is away."""

from __future__ import annotations

import logging

import pytest

from infra import metrics
from infra.metrics import MetricSample, pushing
from tests.support.stub_server import serving

TINY = {"pipeline": "tiny", "pool": "gpus", "queue": "default"}


def test_the_last_state_is_pushed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_S", 60.0)
    samples = [MetricSample("goodput_ratio", 0.25)]
    with serving(lambda asked: (200, {})) as (address, got):
        with pushing(address, "secret-of-the-gateway", TINY, lambda: samples, every_s=60):
            samples[:] = [MetricSample("goodput_ratio", 0.75)]
        [asked] = got
    assert (asked.method, asked.path) == ("PUT", "/metrics/job/trainwright/pipeline/tiny")
    assert asked.headers["authorization"] == "Bearer secret-of-the-gateway"
    assert b'trainwright_goodput_ratio{pipeline="tiny",pool="gpus",queue="default"} 0.75' in asked.body


def test_a_gateway_that_is_away_or_refuses_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        serving(lambda asked: (500, {})) as (address, got),
        pushing(address, None, TINY, list, every_s=0.01),
    ):
        while len(got) < 3:
            pass
    assert "authorization" not in got[0].headers
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        f"The metrics cannot be pushed to {address}"
    ]
