"""Samples per second that our loader hands over, beside other people's loaders and the limits of the machine.

    python benchmarks/loader.py [--quick] [--only a,c]

Shuffled batches of 256 as tensors, no worker processes, one thread of torch. Ours reads sealed Parquet shards, five
epochs of one opened loader with every first batch counted; opening (which reads, verifies and decodes) is stated
apart. `getitems` is torch's DataLoader over an np.memmap with `__getitems__`; `gather` takes the same batches from
arrays in memory with NumPy alone. Peers take an epoch, cut off after some seconds, of a part of the rows. The best of
them is taken among those that hand tensors over themselves; `datasets arrow`, whose Arrow tables a user turns into
tensors by hand, is a ratio of its own.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import importlib.metadata
import json

import common
from noise import Watch
from shard import table_of

from data_contracts.handoffs import Dataset
from data_contracts.pipeline_spec import LoaderSpec, TrainSpec
from infra.files import file_digest
from training import formats
from training.formats.schema import FILE, columns_of, to_json
from training.loader import MemoryBudget, Sampling, Shards, Split, TrainLoader
from training.order import make_plan

BATCH = 256
EPOCHS = 5
PEER_ROWS = 60_000
PEERS = {
    "streaming": "streaming", "litdata": "others", "webdataset": "others", "datasets": "others",
    "datasets arrow": "others", "datasets map": "others", "grain": "others", "tf.data": "tensorflow",
}  # fmt: skip
BY_HAND = "datasets arrow"
BATCHES: dict[str, Any] = {"a": ["image", "label"], "b": [[f"x{at:02d}" for at in range(20)], "label"], "c": ["tokens"]}


def seal(table: pa.Table, folder: Path, shard_bytes: int) -> Dataset:
    """The table in shards of about `shard_bytes`, with the digests that a reader compares."""
    folder.mkdir(parents=True)
    count = max(1, round(table.nbytes / shard_bytes))
    bounds = [table.num_rows * at // count for at in range(count + 1)]
    shards = []
    for number in range(count):
        path = folder / f"train-{number:05}.parquet"
        part = table.slice(bounds[number], bounds[number + 1] - bounds[number])
        formats.write_shard("parquet", part, path)
        size, digest = path.stat().st_size, file_digest(path)
        shards.append({"uri": "", "path": path.name, "rows": part.num_rows, "bytes": size, "blake3": digest})
    (folder / FILE).write_text(json.dumps(to_json(table.schema)))
    ref = {"uri": "datasets/d-0", "id": "d" * 64, "seal": "s" * 64}
    columns = columns_of(table.schema)
    told = {"ref": ref, "key": "d", "format": "parquet", "splits": {"train": shards}, "columns": columns}
    return Dataset.from_json(told)


class Ours:
    """One opened loader; seconds per sample of its five epochs, and of those from the second on."""

    def __init__(self, folder: Path, dataset: Dataset, batch: Any, loader: LoaderSpec, room: MemoryBudget) -> None:
        since = time.perf_counter()
        split = Split(Shards(folder, dataset, "train"), batch, None, loader, room)
        plan = make_plan(split.num_rows, TrainSpec(lightning={}, global_batch_size=BATCH), 1)
        self.loader = TrainLoader(split, plan, Sampling(dataset.ref.id, 0, loader), 0)
        self.open_s = time.perf_counter() - since
        self.later: list[float] = []

    def __call__(self) -> float:
        """Take five epochs."""
        # Each round is a training of its own: it begins without anything prepared.
        self.loader.load_state_dict({"samples": 0})
        ends = [time.perf_counter()]
        for _ in range(EPOCHS):
            for _batch in self.loader:
                pass
            ends.append(time.perf_counter())
        per_epoch = len(self.loader) * BATCH
        self.later.append((ends[-1] - ends[1]) / (per_epoch * (EPOCHS - 1)))
        self.loader.close()
        return (ends[-1] - ends[0]) / (per_epoch * EPOCHS)

    def resume_ms(self) -> float:
        """Milliseconds until the first batch somewhere in ten epochs, the shards being open and verified.

        Blocks of the window may be in memory from before, about as many as fit it: that is why medians are taken.
        """
        samples = random.randrange(10 * len(self.loader)) * BATCH
        time.sleep(0.1)  # what was being read ahead for the position before would get in the way
        since = time.perf_counter()
        self.loader.load_state_dict({"samples": samples})
        next(iter(self.loader))
        taken = 1000 * (time.perf_counter() - since)
        self.loader.close()
        return taken


def getitems(rows: dict[str, np.ndarray], folder: Path) -> Callable[[], float]:
    """Torch's DataLoader over mapped files, a whole batch at a time: twenty lines that anyone can write."""
    folder.mkdir()
    for key, values in rows.items():
        np.save(folder / f"{key}.npy", values)
    mapped = [np.load(folder / f"{key}.npy", mmap_mode="r") for key in rows]

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(mapped[0])

        def __getitems__(self, at: list[int]) -> Any:
            return tuple(torch.from_numpy(values[at]) for values in mapped)

    loader = torch.utils.data.DataLoader(
        Rows(), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=lambda batch: batch
    )

    def run() -> float:
        since = time.perf_counter()
        for _batch in loader:
            pass
        return (time.perf_counter() - since) / (len(loader) * BATCH)

    return run


def gather(rows: dict[str, np.ndarray]) -> Callable[[], float]:
    """The same batches from memory in a permutation that is there already: what no loader can be faster than."""
    arrays = list(rows.values())
    count = len(arrays[0]) // BATCH

    def run() -> float:
        order = np.random.permutation(len(arrays[0]))
        since = time.perf_counter()
        for at in range(count):
            part = order[at * BATCH : (at + 1) * BATCH]
            for values in arrays:
                torch.from_numpy(np.take(values, part, axis=0))
        return (time.perf_counter() - since) / (count * BATCH)

    return run


def ours_of(name: str, table: pa.Table, folder: Path) -> dict[str, Ours]:
    """Our loader's ways to read one data set."""
    # A resume straight from shards has to read its window first: no more rows than a few milliseconds take.
    block = LoaderSpec(shuffle="block", block_rows=16_384, window_blocks=2)
    sealed = {
        "global": seal(table, folder / "global", 64 * 2**20),
        "block": seal(table, folder / "block", table.nbytes // 16),
    }
    quarter = table.nbytes // 3
    return {
        "ours, global, memory": Ours(
            folder / "global", sealed["global"], BATCHES[name], LoaderSpec(), MemoryBudget(2**40, 0)
        ),
        "ours, global, cache": Ours(
            folder / "global", sealed["global"], BATCHES[name], LoaderSpec(), MemoryBudget(0, 2**40)
        ),
        "ours, block, shards": Ours(folder / "block", sealed["block"], BATCHES[name], block, MemoryBudget(quarter, 0)),
        "ours, block, cache": Ours(
            folder / "block", sealed["block"], BATCHES[name], block, MemoryBudget(quarter, 2**40)
        ),
    }


def peers_of(
    name: str, folder: Path, most_s: float, running: dict[str, common.Peer]
) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """The other loaders that can be measured here, and for the rest why not."""
    able: dict[str, Callable[[], float]] = {}
    missing = []
    for peer, place in PEERS.items():
        told = {"peer": peer, "name": name, "folder": str(folder / "peers" / name), "most_s": most_s}
        ask = partial(running[place].ask, **told)
        try:
            ask()  # stores, opens and warms up
        except RuntimeError as error:
            missing.append(f"{peer}: {error}")
        else:
            able[peer] = ask
    return able, missing


def measure(name: str, folder: Path, quick: bool) -> dict[str, float]:
    """The ratios of one data set."""
    rows = common.arrays(name, (common.QUICK_ROWS if quick else common.ROWS)[name])
    table = table_of(name, rows)
    ours = ours_of(name, table, folder)
    contenders: dict[str, Callable[[], float]] = dict(ours)
    contenders["getitems"] = getitems(rows, folder / "getitems")
    contenders["gather"] = gather(rows)
    common.store({key: values[:PEER_ROWS] for key, values in rows.items()}, folder / "peers" / name)
    running = {place: common.Peer(place, "loader_peers.py", place) for place in dict.fromkeys(PEERS.values())}
    able, missing = peers_of(name, folder, 1.0 if quick else 2.5, running)
    contenders |= able
    for one in ours.values():
        one()
        one.later.clear()
    taken = common.interleaved(contenders, 3 if quick else 4)
    for peer in running.values():
        peer.close()
    common.show(
        f"{name}: {table.num_rows:,} rows, {table.nbytes / 2**20:,.0f} MiB",
        {key: [1 / each for each in values] for key, values in taken.items()},
        "samples/s",
    )
    opening = ", ".join(f"{key.removeprefix('ours, ')} {one.open_s:.2f} s" for key, one in ours.items())
    print(f"opening, verifying and decoding: {opening}")
    resume = {key: np.median([one.resume_ms() for _ in range(25)]) for key, one in ours.items()}
    resumed = ", ".join(f"{key.removeprefix('ours, ')} {ms:.1f} ms" for key, ms in resume.items())
    print(f"resume anywhere, medians of 25: {resumed}")
    for line in missing:
        print(f"not measured: {line}")
    return ratios(name, taken, ours["ours, global, memory"], resume["ours, global, memory"])


def ratios(name: str, taken: dict[str, list[float]], first: Ours, resume_ms: float) -> dict[str, float]:
    """What is reported of the seconds per sample that were taken."""
    peers = [key for key in taken if key in PEERS and key != BY_HAND]
    best = min(peers, key=lambda key: np.median(taken[key]), default=None)
    memory, streamed = taken["ours, global, memory"], taken["ours, block, shards"]
    found = {
        f"vs_getitems_{name}": common.ratio(taken["getitems"], memory),
        f"vs_gather_{name}": common.ratio(taken["gather"], first.later),
        f"cache_vs_getitems_{name}": common.ratio(taken["getitems"], taken["ours, global, cache"]),
        f"resume_ms_{name}": round(resume_ms, 1),
    }
    if BY_HAND in taken:
        found[f"vs_datasets_arrow_{name}"] = common.ratio(taken[BY_HAND], memory)
    if best is not None:
        found[f"vs_best_loader_{name}"] = common.ratio(taken[best], memory)
        found[f"block_vs_best_loader_{name}"] = common.ratio(taken[best], streamed)
        found[f"block_cache_vs_best_loader_{name}"] = common.ratio(taken[best], taken["ours, block, cache"])
        print(f"best of the others: {best}")
    return found


def main() -> None:
    """Measure and print."""
    told, watch = common.arguments(__doc__), Watch()
    torch.set_num_threads(1)
    versions = ", ".join(f"{one} {importlib.metadata.version(one)}" for one in ("torch", "numpy", "pyarrow", "numba"))
    print(f"{common.machine()}\n{versions}; batches of {BATCH}, hot page cache")
    ratios: dict[str, float] = {}
    with common.scratch() as folder:
        os.environ["TRAINWRIGHT_HOME"] = str(folder / "home")
        for name in told.only.split(",") if told.only else ("a", "b", "c"):
            ratios |= measure(name, folder / name, told.quick)
    common.conclude(ratios, watch.end(), quick=told.quick)


if __name__ == "__main__":
    main()
