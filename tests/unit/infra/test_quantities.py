"""Sizes and durations in the words that people use for them."""

from __future__ import annotations

import pytest

from infra.quantities import duration, size


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB")],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 seconds"), (1, "1 second"), (75, "1 minute and 15 seconds"), (90_000, "1 day and 1 hour")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
