"""Several files at a time where reading is a request; in order, and not after an error."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from infra.store.store import READERS, read_several

AWAY: Any = SimpleNamespace(is_local=False)


def test_requests_are_made_several_at_a_time_and_answers_stay_in_order() -> None:
    together = threading.Barrier(READERS, timeout=60)

    def read(number: int) -> int:
        together.wait()  # it passes only if so many wait at once
        return -number

    assert read_several(AWAY, read, range(2 * READERS)) == [-number for number in range(2 * READERS)]


def test_an_error_ends_what_has_not_begun() -> None:
    begun: list[int] = []

    def read(number: int) -> None:
        begun.append(number)
        raise ValueError(f"{number} is damaged")

    with pytest.raises(ValueError, match="0 is damaged"):
        read_several(AWAY, read, range(100_000))
    assert len(begun) < 100_000
