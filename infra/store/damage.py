"""Damage that a reader passes over: a line in the log, or kept for a command whose answer would be wrong without it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

from data_contracts.errors import CorruptError, TrainwrightError

_noted: ContextVar[list[TrainwrightError] | None] = ContextVar("noted", default=None)
log = logging.getLogger("trainwright")


def pass_over(error: TrainwrightError) -> None:
    """Note damage that ends nothing, because the caller goes on without what is damaged.

    A file that this user may not read counts as damaged.
    """
    noted = _noted.get()
    if noted is None:
        log.warning("%s It is passed over.", error.message)
    else:
        noted.append(error)


@contextlib.contextmanager
def passing_over() -> Iterator[None]:
    """End the block without an error where a file is missing or damaged; damage is noted."""
    try:
        yield
    except FileNotFoundError:
        pass
    except CorruptError as error:
        pass_over(error)


@contextlib.contextmanager
def noting_damage() -> Iterator[list[TrainwrightError]]:
    """The damage that is passed over in the block, which is not logged; the caller must report it."""
    noted: list[TrainwrightError] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)
