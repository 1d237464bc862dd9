"""Kills shard work at its file system calls, one after the other, and has it carried on: `python -m … REQUEST STEP`.

Each try is forked from this process, which has done none of the work itself; strace attaches to it and kills it at
the n-th call of one name in one thread. Then the work is done again with what is there. Prints JSON: how many calls
there are, how many were tried, which kills never came, and how often shards were there already when the work went on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path

from data_contracts.messages.raw_data import ShardRequest
from infra.store import open_at
from tests.support.strace import traced
from training.shard.worker import main

CALLS = "%file,read,write,pwrite64,pread64,lseek,ftruncate,fsync,fdatasync,close,getdents64,flock"
MOST_TRIES = 20


def forked(request: ShardRequest) -> int:
    """A stopped child that will do the work once it is continued."""
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            main(request, lambda record: None)
            os._exit(0)
        finally:
            os._exit(1)
    os.waitpid(child, os.WUNTRACED)
    return child


def carried_on(request: ShardRequest) -> str:
    """Do the work with what is there; the id of what is sealed then, every byte of it read."""
    child = forked(request)
    os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the work could not go on"
    return open_at(request.store).verify(request.uri).id


def sweep(request: ShardRequest, step: int) -> dict:
    """Try every `step`-th call."""
    folder = Path(request.store.uri) / request.uri
    with tempfile.TemporaryDirectory() as scratch:
        log = f"{scratch}/log"
        wanted = carried_on(request)
        # Counted as each try finds the store: made already, without the dataset.
        shutil.rmtree(folder)
        assert traced(forked(request), "-o", log, "-e", f"trace={CALLS}") == 0
        lines = Path(log).read_text().splitlines()
        # strace counts the calls of a name per thread. In the order of the work: a sample is spread over all of it.
        counts: Counter[tuple[str, str]] = Counter()
        calls: dict[tuple[str, int], None] = {}
        for line in lines:
            if match := re.match(r"(\d+) +(\w+)\(", line):
                counts[match[2], match[1]] += 1
                calls.setdefault((match[2], counts[match[2], match[1]]))
        # Always at links: each puts a whole shard in its place.
        tried = [(name, n) for i, (name, n) in enumerate(calls) if i % step == 0 or name.startswith("link")]
        missed, partial = [], 0
        for name, wanted_n in tried:
            # Threads share the work differently each time; a kill that did not come is tried again, one call earlier.
            for n in range(wanted_n, max(wanted_n - MOST_TRIES, 0), -1):
                shutil.rmtree(folder)
                kill = f"inject={name}:signal=SIGKILL:when={n}"
                status = traced(forked(request), "-o", log, "-e", f"trace={name}", "-e", kill)
                partial += folder.is_dir() and not (folder / "manifest.json").exists() and any(folder.iterdir())
                found = carried_on(request)
                assert found == wanted, f"another dataset after a kill at {name} {n}"
                if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                    break
            else:
                missed.append(f"{name} {wanted_n}")
    return {"calls": len(calls), "tried": len(tried), "missed": missed, "went_on_with_shards": partial}


if __name__ == "__main__":
    # Imports at their first use would be most of what is killed.
    for module in ("training.formats.parquet", "training.formats.tfrecord", "pandas"):
        import_module(module)
    print(json.dumps(sweep(ShardRequest.from_json(json.loads(Path(sys.argv[1]).read_text())), int(sys.argv[2]))))
