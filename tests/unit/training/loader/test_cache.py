"""The node's files of columns: made once, whole or not at all, checked, and given up when others need the room."""

from __future__ import annotations

import errno
import gc
import io
import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.errors import StorageUnavailable
from data_contracts.handoffs import Dataset
from tests.support.splits import write_split
from training.formats import Shards
from training.loader import MemoryBudget, Split

ROWS = 60
TABLE = pa.table({"x": np.arange(ROWS, dtype=np.int64), "text": [str(at) for at in range(ROWS)]})


@pytest.fixture(autouse=True)
def columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "columns"


def cached(folder: Path, dataset: Dataset, batch: list[str] | None = None, cache_bytes: int = 2**30) -> Split:
    return Split(Shards(folder, dataset, "train"), batch or ["x", "text"], room=MemoryBudget(0, cache_bytes))


def numbers(split: Split) -> list[int]:
    x, text = split.take(np.array([59, 0, 30]))
    assert text == [str(at) for at in x.tolist()]
    return x.tolist()


def folders(columns: Path) -> list[str]:
    return sorted(path.name for path in columns.iterdir() if path.is_dir())


def test_a_damaged_file_is_made_anew(tmp_path: Path, columns: Path) -> None:
    dataset = write_split(tmp_path / "data", TABLE)
    cached(tmp_path / "data", dataset)
    [made] = folders(columns)
    (columns / made / "checked").unlink()  # as another launch finds it
    for damage in (bytes, lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:]):
        (columns / made / "0.bin").write_bytes(damage((columns / made / "0.bin").read_bytes()))
        assert numbers(cached(tmp_path / "data", dataset)) == [59, 0, 30]
        (columns / made / "checked").unlink()


def test_a_full_disk_is_named_and_leaves_nothing(
    tmp_path: Path, columns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_split(tmp_path / "data", TABLE, [30, 30])

    class Full(io.FileIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    opened = Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda path, mode="r", *rest, **how: Full(path, "w") if mode == "wb" else opened(path, mode, *rest, **how),
    )
    with pytest.raises(StorageUnavailable, match="columns is full: decoding stopped at shard 0 of split train"):
        cached(tmp_path / "data", dataset)
    assert folders(columns) == []
    monkeypatch.undo()
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(columns.parent))
    assert numbers(cached(tmp_path / "data", dataset)) == [59, 0, 30]


def test_what_nobody_maps_makes_room_the_oldest_first(tmp_path: Path, columns: Path) -> None:
    rows = 4000
    room = 2 * rows * 8 + 2000  # for two, with their layouts

    def opened(name: str) -> tuple[Split, str]:
        table = pa.table({"x": np.arange(rows, dtype=np.int64) + len(name)})
        dataset = write_split(tmp_path / name, table)
        before = set(folders(columns)) if columns.exists() else set()
        gc.collect()  # garbage maps nothing
        split = cached(tmp_path / name, dataset, ["x"], room)
        return split, "".join(set(folders(columns)) - before)

    _, first = opened("a")
    _, second = opened("bb")
    _, third = opened("ccc")
    assert folders(columns) == sorted([second, third])
    assert first
    kept, _ = opened("bb")  # mapped from now on, so the next to go is the younger one
    os.utime(columns / second, (0, 0))
    _, fourth = opened("dddd")
    assert folders(columns) == sorted([second, fourth])
    assert kept.take(slice(0, 2))[0].tolist() == [2, 3]


def test_what_does_not_fit_is_not_made(tmp_path: Path, columns: Path) -> None:
    dataset = write_split(tmp_path / "data", TABLE.select(["x"]))
    with pytest.raises(Exception, match=r"more than a rank's memory \(0\) and the node's cache \(479\)"):
        cached(tmp_path / "data", dataset, ["x"], ROWS * 8 - 1)
    assert folders(columns) == []


def test_of_many_one_makes_it_and_the_others_wait(
    tmp_path: Path, columns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a file keeps threads apart as it does processes, because each opens the file."""
    dataset = write_split(tmp_path / "data", TABLE, [20, 40])
    tables, read, found = Shards.tables, [], []
    monkeypatch.setattr(Shards, "tables", lambda *given: (read.append(given), tables(*given))[1])
    threads = [
        threading.Thread(target=lambda: found.append(numbers(cached(tmp_path / "data", dataset)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert found == [[59, 0, 30]] * 3
    assert (len(read), len(folders(columns))) == (2, 1)
