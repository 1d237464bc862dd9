"""A module may look at its train loader as often as it likes: what is trained on stays the same."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.pipeline_spec import LoaderSpec, TrainSpec
from tests.support.splits import write_split
from training.loader import MemoryBudget, Sampling, Shards, Split, TrainLoader
from training.loader.loaders import LoaderView
from training.loader.rows import AllRows, StreamedRows
from training.order import epoch_order, make_plan

pytestmark = pytest.mark.usefixtures("home")

ROWS, BATCH = 50, 8
BLOCK = LoaderSpec(shuffle="block", block_rows=4, window_blocks=2)
PER_EPOCH = ROWS // BATCH * BATCH


def made(folder: Path, room: MemoryBudget, **more: Any) -> TrainLoader:
    dataset = write_split(folder, pa.table({"x": np.arange(ROWS, dtype=np.float32)}))
    split = Split(Shards(folder, dataset, "train"), ["x"], None, BLOCK, room)
    plan = make_plan(ROWS, TrainSpec(lightning={}, global_batch_size=BATCH, micro_batch_size=4), 1)
    return TrainLoader(split, plan, Sampling("d", 5, BLOCK), 0, **more)


def in_order(epoch: int) -> list[float]:
    rows: list[float] = epoch_order(BLOCK, [ROWS], "d", 5, epoch)(np.arange(PER_EPOCH)).astype(float).tolist()
    return rows


def take(iterator: Any, into: list[float]) -> None:
    into += next(iterator)[0].tolist()


@pytest.mark.parametrize(("room", "kind"), [(2**30, AllRows), (64, StreamedRows)])
def test_iterators_are_independent_of_each_other_and_of_the_cursor(room: int, kind: type, tmp_path: Path) -> None:
    loader = made(tmp_path, MemoryBudget(room, 0), skip=[(0, 8)])
    assert isinstance(loader.split._rows, kind)
    loader.load_state_dict({"samples": 16})
    view = LoaderView(loader)
    own, first, second = iter(loader), iter(view), iter(view)
    rows: tuple[list[float], ...] = ([], [], [])
    for _ in range(8):
        take(own, rows[0])
        take(first, rows[1])
    for _ in range(len(view)):
        take(second, rows[2])
        if len(rows[1]) < PER_EPOCH:
            take(first, rows[1])
    assert [next(one, None) for one in (first, second)] == [None, None]
    # Rows that training skips are among them, and where it stands makes no difference.
    assert rows[1] == rows[2] == in_order(0)
    assert (rows[0], loader.state_dict()) == (in_order(0)[16:], {"samples": 48})
    loader.close()


def test_a_look_does_not_meet_the_thread_in_the_middle_of_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = made(tmp_path, MemoryBudget(64, 0))
    reading, met = threading.Lock(), []
    gather = loader.split._rows.gather

    def watched(*given: Any) -> Any:
        met.append(reading.acquire(blocking=False))
        rows = gather(*given)
        reading.release()
        return rows

    monkeypatch.setattr(loader.split._rows, "gather", watched)
    for _ in loader:
        next(iter(LoaderView(loader)))
    loader.close()
    assert all(met)
