"""Sizes and durations in the words that people use for them."""

from __future__ import annotations

import pytest

from infra.quantities import BYTES, SECONDS, duration, in_two_units, in_words, size


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min"), (90_000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations_in_two_units(seconds: float, text: str) -> None:
    assert in_two_units(seconds) == text


@pytest.mark.parametrize(
    ("value", "units", "words"),
    [(999, BYTES, "999 B"), (1234, BYTES, "1.23 kB"), (5e8, BYTES, "500 MB"), (0, SECONDS, "0 s"),
     (59.4, SECONDS, "59 s"), (90, SECONDS, "1.5 min"), (200_000, SECONDS, "2.31 d")],
)  # fmt: skip
def test_figures_in_words(value: float, units: list[tuple[str, float]], words: str) -> None:
    assert in_words(value, units) == words
