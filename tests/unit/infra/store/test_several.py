"""Several files at a time where reading is a request; in order, and not after an error."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra.store.backend import READERS
from infra.store.store import read_newest, read_several

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


def test_who_needs_only_the_first_reads_only_that_and_who_needs_more_waits_for_ever_more_at_once() -> None:
    begun: list[int] = []

    def read(number: int) -> int:
        begun.append(number)
        return -number

    assert next(read_newest(AWAY, read, range(1_000))) == 0
    assert begun == [0]
    begun.clear()
    assert list(itertools.islice(read_newest(AWAY, read, range(100_000)), 20)) == [-number for number in range(20)]
    assert set(range(20)) <= set(begun) <= set(range(31)), "1, 2, 4, 8 and at most 16"
    assert list(read_newest(AWAY, read, range(5_000))) == [-number for number in range(5_000)]


@pytest.mark.parametrize("is_local", [True, False])
def test_an_error_about_what_nobody_comes_to_is_not_raised(is_local: bool) -> None:
    def read(number: int) -> int:
        if number == 5:
            raise ValueError("5 is damaged")
        return number

    answers = read_newest(cast(Any, SimpleNamespace(is_local=is_local)), read, range(10))
    assert list(itertools.islice(answers, 5)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="5 is damaged"):
        next(answers)
