"""Rows per second written and read by our shard formats, beside TensorFlow, pyarrow and other people's shard writers.

    python benchmarks/shard.py [--quick] [--only a,c,stage,stage20]

A write is one call of `formats.write_shard` with the rows of a shard in memory, then fsync of file and folder;
a read goes through `read_blocks` to the end. Every contender takes its turn in every round. `stage` is the
whole stage on 2,000,000 rows beside DuckDB's external sort, `stage20` on 20,000,000.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import common
from noise import Watch
from shard_stage import Stage, store_rows

from training import formats
from training.formats.schema import tensor_field

# Peers write, and readers read, no more than the first rows: no rate depends on how many there are.
TENSORFLOW_ROWS = 500_000
PEER_ROWS, QUICK_PEER_ROWS = 30_000, 5_000
# The least that a turn takes.
TURN_S, QUICK_TURN_S = 1.0, 0.2
STAGE_ROWS = {"stage": 2_000_000, "stage20": 20_000_000}
QUICK_STAGE_ROWS = 200_000


def table_of(name: str, columns: dict[str, np.ndarray]) -> pa.Table:
    """A data set as the normalised rows that a shard is written from."""
    if name == "ragged":
        tokens, scores = (
            pa.ListArray.from_arrays(columns[f"{key}_offsets"], columns[key]) for key in ("tokens", "scores")
        )
        buffers = [None, pa.py_buffer(columns["text_offsets"]), pa.py_buffer(columns["text"])]
        text = pa.Array.from_buffers(pa.string(), len(tokens), buffers)
        return pa.table({"tokens": tokens, "scores": scores, "text": text})
    fields, arrays = [], []
    for key, values in columns.items():
        if key == "x":  # a column each
            fields += [pa.field(f"x{at:02d}", pa.float32()) for at in range(values.shape[1])]
            arrays += [pa.array(np.ascontiguousarray(column)) for column in values.T]
        elif values.ndim == 1:
            fields.append(pa.field(key, pa.int64()))
            arrays.append(pa.array(values))
        else:
            fields.append(tensor_field(key, values.dtype.name, values.shape[1:]))
            buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
            arrays.append(pa.Array.from_buffers(fields[-1].type, len(values), buffers))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def timed_write(write: Callable[[pa.Table, Path], Any], table: pa.Table, path: Path) -> float:
    """Seconds of a write with fsync of file and folder."""
    start = time.perf_counter()
    write(table, path)
    common.sync(path)
    taken = time.perf_counter() - start
    path.unlink()
    return taken


def bare_parquet(table: pa.Table, path: Path) -> None:
    """What pyarrow itself does with the same rows: native width, uncompressed, without dictionaries."""
    pq.write_table(table, path, compression="none", use_dictionary=False)


class Shards:
    """The contenders over one data set."""

    def __init__(self, name: str, folder: Path, peers: dict[str, common.Peer], quick: bool = False) -> None:
        self.name, self.folder, self.peers = name, folder, peers
        self.rows = rows = (common.QUICK_ROWS if quick else common.ROWS)[name]
        self.peer_rows, self.turn_s = (QUICK_PEER_ROWS, QUICK_TURN_S) if quick else (PEER_ROWS, TURN_S)
        columns = common.arrays(name, rows)
        common.store(columns, folder / name)
        self.table = table_of(name, columns)
        self.ratios: dict[str, float] = {}

    def ours(self, format_name: str, rows: int | None = None) -> Callable[[], float]:
        """Our writer of a format."""
        table = self.table.slice(0, rows)
        return lambda: timed_write(partial(formats.write_shard, format_name), table, self.folder / "ours") / len(table)

    def peer(self, name: str, rows: int | None = None, **options: Any) -> Callable[[], float]:
        """A peer's writer."""
        count = min(self.rows, rows or self.rows)
        request = {"name": self.name, "folder": str(self.folder / self.name), "out": str(self.folder / "theirs")}
        limit = None if count == self.rows else count
        return lambda: self.peers[name].ask(what="write", limit=limit, **request, **options) / count

    def compare(self, title: str, contenders: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
        """Seconds per row of each in each round, shown as rows per second; one round before them does not count."""
        common.interleaved(contenders, 1)
        taken = common.interleaved(contenders, rounds, self.turn_s)
        rates = {name: [1 / one for one in values] for name, values in taken.items()}
        common.show(f"{self.name}: {title}, {self.rows:,} rows, {rounds} rounds", rates, "rows/s")
        return taken

    def tfrecord(self, rounds: int) -> None:
        """`tfrecord_vs_tensorflow_*`."""
        contenders = {
            "ours, TFRecord": self.ours("tfrecord", TENSORFLOW_ROWS),
            "TensorFlow": self.peer("tensorflow", TENSORFLOW_ROWS),
        }
        if self.name == "b":
            contenders["TensorFlow, a feature per column"] = self.peer("tensorflow", self.peer_rows, columns=True)
        taken = self.compare("writing TFRecord", contenders, rounds)
        ours = taken["ours, TFRecord"]
        self.ratios[f"tfrecord_vs_tensorflow_{self.name}"] = common.ratio(taken["TensorFlow"], ours)
        if self.name == "b":
            theirs = taken["TensorFlow, a feature per column"]
            self.ratios["tfrecord_vs_tensorflow_b_columns"] = common.ratio(theirs, ours)

    def parquet(self, rounds: int) -> None:
        """`parquet_vs_pyarrow_*`."""
        contenders = {
            "ours, Parquet": self.ours("parquet"),
            "pyarrow": lambda: timed_write(bare_parquet, self.table, self.folder / "bare") / self.rows,
        }
        taken = self.compare("writing Parquet", contenders, rounds)
        self.ratios[f"parquet_vs_pyarrow_{self.name}"] = common.ratio(taken["pyarrow"], taken["ours, Parquet"])

    def others(self, rounds: int) -> None:
        """`vs_<peer>_*` for our Parquet shards, and `tfrecord_vs_<peer>_*` for our TFRecord shards."""
        names = ("tfrecord", "mds", "litdata", "webdataset")
        contenders = {"ours, Parquet": self.ours("parquet"), "ours, TFRecord": self.ours("tfrecord", TENSORFLOW_ROWS)}
        contenders |= {name: self.peer(name, self.peer_rows) for name in names}
        taken = self.compare(f"writing (peers: the first {min(self.rows, self.peer_rows):,})", contenders, rounds)
        for name in names:
            self.ratios[f"vs_{name}_{self.name}"] = common.ratio(taken[name], taken["ours, Parquet"])
            self.ratios[f"tfrecord_vs_{name}_{self.name}"] = common.ratio(taken[name], taken["ours, TFRecord"])

    def reading(self, rounds: int) -> None:
        """`read_vs_tfdata_*`: the same file, read to the end, its rows not kept."""
        path = self.folder / f"{self.name}.tfrecord"
        reader = formats.get("tfrecord")
        table = self.table.slice(0, TENSORFLOW_ROWS)
        formats.write_shard("tfrecord", table, path)

        def ours() -> float:
            start = time.perf_counter()
            count = sum(block.num_rows for block in reader.read_blocks(path, table.schema))
            taken = time.perf_counter() - start
            assert count == len(table)
            return taken / len(table)

        def theirs(batch: int) -> float:
            taken, count = self.peers["tensorflow"].ask(what="read", name=self.name, path=str(path), batch=batch)
            assert count == len(table)
            return taken / len(table)

        contenders = {"ours, TFRecord": ours}
        contenders |= {f"tf.data, batches of {batch:,}": lambda b=batch: theirs(b) for batch in (256, 4_096)}
        taken = self.compare("reading TFRecord", contenders, rounds)
        best = [min(pair) for pair in zip(*(taken[name] for name in contenders if name[:2] == "tf"), strict=True)]
        self.ratios[f"read_vs_tfdata_{self.name}"] = common.ratio(best, taken["ours, TFRecord"])


def stage(name: str, folder: Path, quick: bool) -> dict[str, float]:
    """`shard_vs_duckdb` by the clock, and `shard_vs_duckdb_cpu` by the processor time of all processes."""
    rows = QUICK_STAGE_ROWS if quick else STAGE_ROWS[name]
    store_rows(rows, folder / "rows.parquet")
    turns = Stage(folder / "rows.parquet", folder)
    contenders = {"ours": turns.ours, "DuckDB": turns.duckdb}
    common.interleaved(contenders, 1)
    turns.processor_s = {who: [] for who in contenders}
    taken = common.interleaved(contenders, 3 if quick or rows > STAGE_ROWS["stage"] else 5)
    for unit, figures in (("ms", taken), ("ms of processors", turns.processor_s)):
        shown = {who: [value * 1000 for value in values] for who, values in figures.items()}
        common.show(f"{name}: split by key, sealed, {rows:,} rows", shown, unit)
    suffix = name.removeprefix("stage")
    return {
        f"shard_vs_duckdb{suffix}": common.ratio(taken["DuckDB"], taken["ours"]),
        f"shard_vs_duckdb{suffix}_cpu": common.ratio(turns.processor_s["DuckDB"], turns.processor_s["ours"]),
    }


def main() -> None:
    """Measure what was asked for and print it."""
    asked, watch = common.arguments(__doc__), Watch()
    names = asked.only.split(",") if asked.only else [*common.ROWS, "stage"]
    rounds = 3 if asked.quick else 5
    environments = {"tensorflow": "tensorflow", "mds": "streaming"}
    beside = ("tensorflow", "tfrecord", "mds", "litdata", "webdataset") if set(names) - STAGE_ROWS.keys() else ()
    peers = {name: common.Peer(environments.get(name, "others"), "shard_peers.py", name) for name in beside}
    versions = {package: importlib.metadata.version(package) for package in ("pyarrow", "numpy", "numba", "duckdb")}
    for peer in peers.values():
        versions |= peer.ask(what="versions")
    print(common.machine())
    print(", ".join(f"{package} {version}" for package, version in versions.items()))
    print("hot page cache, local disk; all writes but DuckDB's with fsync of files and folder; one thread of ours")
    ratios: dict[str, float] = {}
    with common.scratch() as folder:
        for name in names:
            if name in STAGE_ROWS:
                ratios |= stage(name, folder, asked.quick)
                continue
            shards = Shards(name, folder, peers, asked.quick)
            shards.tfrecord(rounds)
            shards.parquet(rounds)
            shards.reading(rounds)
            if name != "ragged":
                shards.others(rounds)
            ratios |= shards.ratios
    for peer in peers.values():
        peer.close()
    common.conclude(ratios, watch.end(), quick=asked.quick)


if __name__ == "__main__":
    main()
