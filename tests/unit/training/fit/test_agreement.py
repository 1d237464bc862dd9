"""What the ranks agree on: the most urgent flag of any, a sum, and a signal that any of them got."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import program
from training.fit.guards import NOT_SAVED, WRONG, Agreement


@pytest.fixture(autouse=True)
def _handler_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_one_rank_agrees_with_itself() -> None:
    agreement = Agreement(60)
    agreement.meet(1)
    assert (agreement.most_urgent(NOT_SAVED), agreement.total(7)) == (NOT_SAVED, 7)


def test_sigterm_only_sets_a_flag() -> None:
    agreement = Agreement(60)
    agreement.listen()
    assert not agreement.stop_signalled
    os.kill(os.getpid(), signal.SIGTERM)
    assert agreement.stop_signalled


RANK = """
import sys
from pathlib import Path
import torch.distributed as dist
from training.fit.guards import STOP, WRONG, Agreement

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
agreement = Agreement(60)
agreement.meet(2)
agreed = agreement.most_urgent((STOP, WRONG + 1)[rank]), agreement.total((2**40, 3)[rank])
Path(folder, str(rank)).write_text(f"{agreed}")
dist.destroy_process_group()
"""


@pytest.mark.warm
def test_two_ranks_take_the_greater_flag_and_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only for these two: a later test's gang on other addresses would inherit it.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    ranks = [program.start(RANK, str(rank), str(tmp_path)) for rank in range(2)]
    assert [rank.wait(240) for rank in ranks] == [0, 0]
    assert {(tmp_path / str(rank)).read_text() for rank in range(2)} == {f"{(WRONG + 1, 2**40 + 3)}"}
