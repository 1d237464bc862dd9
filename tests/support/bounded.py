"""Shards Parquet files into a new store with the shard worker and says what it took: `python -m tests.support.bounded`.

Arguments: folder of the source files, folder of the store, the `shards` section as JSON. Prints JSON: rows, id,
seconds, and the largest resident memory of this process and all below it together, sampled every 20 ms.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import psutil

from data_contracts.messages.raw_data import ShardRequest
from infra.files import file_digest
from infra.store import open_store
from training.shard.splitter import REQUIRED
from training.shard.worker import main


def memory_bytes() -> tuple[int, int]:
    """Resident memory of this process and its descendants now: summed, and with shared pages counted once."""
    me = psutil.Process()
    rss = pss = 0
    for process in [me, *me.children(recursive=True)]:
        try:
            rss += process.memory_info().rss
            pss += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return rss, pss


def run(raw: Path, store: Path, shards: dict) -> dict:
    """Shard all files in `raw` and measure."""
    open_store(str(store))
    files = [
        {"uri": str(path), "bytes": path.stat().st_size, "blake3": file_digest(path), "format": "parquet"}
        for path in sorted(raw.iterdir())
    ]
    largest, ended = [0, 0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.02):
            largest[:] = map(max, largest, memory_bytes())

    watcher = threading.Thread(target=sample)
    watcher.start()
    started = time.monotonic()
    request = ShardRequest.from_json({
        "store": {"uri": str(store)}, "uri": "datasets/k-0", "key": "k", "files": files,
        "sources": [{"uri": str(raw)}], "root": str(raw), "shards": shards, "required_splits": list(REQUIRED),
        "settings": {}, "provenance": {},
    })  # fmt: skip
    try:
        dataset = main(request, lambda report: print(report, file=sys.stderr))
    finally:
        ended.set()
        watcher.join()
    return {
        "id": dataset.ref.id,
        "rows": sum(map(dataset.rows, dataset.splits)),
        "shards": sum(map(len, dataset.splits.values())),
        "seconds": round(time.monotonic() - started, 1),
        "rss_mib": largest[0] >> 20,
        "pss_mib": largest[1] >> 20,
    }


if __name__ == "__main__":
    if limited := os.environ.get("MEMORY_CGROUP"):
        Path(limited, "cgroup.procs").write_text(str(os.getpid()))
    print(json.dumps(run(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))))
