"""The shard stage's process, whole, beside an external sort by DuckDB: the turns that `shard.py` takes for `stage`.

Both read one Parquet file of 22 columns and write all of its rows as uncompressed Parquet in an order drawn by hash.
The stage also splits the rows by a key, compares the source's digest, cuts shards, syncs them to disk and seals them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import psutil
import pyarrow.parquet as pq
from validate import made

from data_contracts.handoffs import SourceFile
from data_contracts.messages.children import StoreAddress
from data_contracts.messages.raw_data import SHARD, ShardRequest
from data_contracts.pipeline_spec import ShardsSpec, SourceSpec, SplitSpec
from infra.child import run_child
from infra.files import file_digest
from infra.store.opening import open_store
from training.shard.splitter import REQUIRED

# Rows that are drawn at once; a larger table has the same rows again under other keys.
DRAWN_ROWS = 2_000_000
MEMORY_BYTES, THREADS = 2**30, 2
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def store_rows(rows: int, path: Path) -> None:
    """Write the table of `validate.py` with this many rows."""
    drawn = made(min(rows, DRAWN_ROWS))
    keys = drawn.column("id").to_numpy()
    with pq.ParquetWriter(path, drawn.schema) as writer:
        for first in range(0, rows, DRAWN_ROWS):
            one = drawn.set_column(0, "id", [keys + first])
            writer.write_table(one.slice(0, rows - first))


class Stage:
    """The contenders over one file; each turn gives the seconds that it took.

    Attributes:
        processor_s: per contender, the processor time of each turn, all processes together.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.processor_s: dict[str, list[float]] = {"ours": [], "DuckDB": []}
        file = SourceFile(uri=str(path), bytes=path.stat().st_size, blake3=file_digest(path), format="parquet")
        self._request = ShardRequest(
            store=StoreAddress(uri=str(folder / "store")), uri="datasets/k-0", key="k", files=[file],
            sources=[SourceSpec(uri=str(path))], root=str(folder), settings={"stage": "shard"}, provenance={},
            shards=ShardsSpec(split=SplitSpec(key="id")), required_splits=list(REQUIRED),
        )  # fmt: skip
        # Otherwise the server that forks the stage's processes would not be waited for, and its time not be counted.
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)

    def ours(self) -> float:
        """The stage's process with default settings, on a new store."""
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        open_store(str(self.folder / "store"))
        return self._timed("ours", lambda: run_child(SHARD, self._request))

    def duckdb(self) -> float:
        """DuckDB's sort by a hash of the key."""
        target = self.folder / "sorted.parquet"

        def copy() -> None:
            limits = {"memory_limit": f"{MEMORY_BYTES}B", "threads": THREADS, "temp_directory": f"{target}.spilled"}
            with duckdb.connect(config=limits) as connection:
                connection.execute(
                    f"COPY (SELECT * FROM read_parquet('{self.path}') ORDER BY hash(id)) TO '{target}' "
                    "(FORMAT parquet, COMPRESSION uncompressed)"
                )

        return self._timed("DuckDB", copy)

    def _timed(self, name: str, turn: Callable[[], object]) -> float:
        running = _children()
        since, used = time.perf_counter(), _processor_s()
        turn()
        taken = time.perf_counter() - since
        _wait_for_adopted(running)
        self.processor_s[name].append(_processor_s() - used)
        return taken


def _processor_s() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


def _wait_for_adopted(running: set[int]) -> None:
    """Wait for the processes whose parent has ended, but not for those that ran before, such as peers."""
    # The end of one may leave others to be adopted.
    while adopted := _children() - running:
        for process_id in adopted:
            os.waitpid(process_id, 0)
