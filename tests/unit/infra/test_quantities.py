"""Sizes and durations in the words that people use for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from infra.quantities import BYTES, SECONDS, duration, in_two_units, in_words, size

in_bytes, in_seconds = partial(in_words, units=BYTES), partial(in_words, units=SECONDS)


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [
        (size, 0, "0 bytes"), (size, 1, "1 byte"), (size, 1023, "1023 bytes"), (size, 1536, "1.5 KiB"),
        (size, 3 * 2**30, "3.0 GiB"), (duration, 0.4, "0 seconds"), (duration, 1, "1 second"),
        (duration, 75, "1 minute and 15 seconds"), (duration, 90_000, "1 day and 1 hour"), (in_two_units, 0, "0 s"),
        (in_two_units, 59.6, "1 min 0 s"), (in_two_units, 3600, "1 h 0 min"), (in_two_units, 90_000, "1 d 1 h"),
        (in_two_units, -5, "0 s"), (in_bytes, 999, "999 B"), (in_bytes, 1234, "1.23 kB"), (in_bytes, 5e8, "500 MB"),
        (in_seconds, 0, "0 s"), (in_seconds, 59.4, "59 s"), (in_seconds, 90, "1.5 min"),
        (in_seconds, 200_000, "2.31 d"),
    ],
)  # fmt: skip
def test_quantities_are_said_in_words(shown: Callable[[float], str], value: float, text: str) -> None:
    assert shown(value) == text
