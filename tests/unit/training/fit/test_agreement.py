"""What the ranks agree on: the most urgent flag of any, a sum, and a signal that any of them got."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from training.fit.guards import Agreement


@pytest.fixture(autouse=True)
def _handler_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_only_sets_a_flag() -> None:
    agreement = Agreement(60)
    agreement.listen()
    assert not agreement.stop_signalled
    os.kill(os.getpid(), signal.SIGTERM)
    assert agreement.stop_signalled
