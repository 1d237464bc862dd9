"""Where a process stands in a trace: as W3C writes it, and the same for whoever computes it."""

from __future__ import annotations

import pytest

from infra.telemetry import TRACEPARENT, Context, current, new_context, parsed

TEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_what_is_written_is_read() -> None:
    found = parsed(TEXT)
    assert found == Context("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert str(found) == TEXT
    assert str(parsed(TEXT[:-1] + "0")) == TEXT[:-1] + "0"
    begun = new_context(sampled=False)
    assert parsed(str(begun)) == begun
    assert current({TRACEPARENT: TEXT}) == found


@pytest.mark.parametrize(
    "text", ["", "x", TEXT[:-1], TEXT.upper(), TEXT.replace("0af7", "zzzz"), "00-" + "0" * 32 + TEXT[35:], TEXT + "-1"]
)
def test_what_is_malformed_begins_a_trace_of_its_own(text: str) -> None:
    assert parsed(text) is None
    assert current({TRACEPARENT: text}) is None


def test_a_child_is_known_to_both_sides_and_differs_from_its_siblings() -> None:
    above = new_context()
    assert above.child("node", 0, 1) == above.child("node", 0, 1)
    ids = {above.child("node", generation, node).span for generation in range(3) for node in range(3)}
    assert len(ids | {above.span}) == 10
    assert above.child("node", 0, 1).trace == above.trace
