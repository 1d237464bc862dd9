"""What commands cost on a store of many runs on S3: requests, seconds that these take, and processor seconds.

    python benchmarks/many_runs.py [--quick] [--runs 10000] [--shards 10000] [--from STORE]

One real run of the tiny pipeline is made (or taken from a store that has one), and its records are copied under new
ids: nine of ten copies are of other pipelines. The copies reuse the training, dataset and evaluation of the first run.
The commands are called as the command line calls them, on a folder that answers as S3 would: requests are counted, with
a page of a listing for each thousand names, and nothing is read at once that the code does not read at once. The
seconds are computed: requests that a thread makes alone, and those of a pool divided by its threads, at 30 ms each.

A folder's backend needs little of the processor. What the client of S3 needs beside that for as many requests is the
column `client s`: it cannot be divided by threads, as Python carries out one at a time. So a command takes about the
larger of `seconds` and the sum of both processor times.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from common import machine  # noqa: E402

from data_contracts.handoffs import FileEntry, Ref  # noqa: E402
from flows.cli import main as trainwright  # noqa: E402
from infra.files import hash_chunks  # noqa: E402
from infra.store import layout, open_store, opening  # noqa: E402
from infra.store.folder import FolderBackend  # noqa: E402
from infra.store.records import write_record  # noqa: E402
from infra.store.seal import write_manifest  # noqa: E402
from infra.store.store import READERS  # noqa: E402
from tests.support.tiny import write_project  # noqa: E402

LATENCY_S = 0.03
# Of the processor, for a GET by s3fs from a server on this machine that answers at once; on two cores (2026-11-30).
CLIENT_S = 0.0028
# Names in a page of a listing.
PAGE = 1000
# Requests of S3's backend for one call, where it is not one.
REQUESTS = {"create": 2, "create_file": 2, "replace": 2, "now_s": 3, "leftovers": 2}
LISTINGS = ("names", "walk", "stored")
PIPELINES = 10


class Bucket:
    """A folder's backend that is not on this machine, as far as the store can tell; its requests are counted.

    Attributes:
        requests: by the number of threads that share the work, of which a lone thread is 1.
    """

    is_local = False

    def __init__(self, inner: FolderBackend) -> None:
        self.inner = inner
        self.requests: Counter[int] = Counter()
        self.calls: Counter[str] = Counter()
        self._counting = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def ask(*arguments: Any, **more: Any) -> Any:
            answer, number = None, REQUESTS.get(name, 1)
            try:
                answer = found(*arguments, **more)
                return answer
            finally:
                if name in LISTINGS and answer:
                    number = math.ceil(len(answer) / PAGE)
                with self._counting:
                    self.requests[_threads()] += number
                    self.calls[name] += number

        return ask

    def local(self, uri: str) -> None:
        """No file is on this machine."""

    def creates_large_once(self, path: str) -> bool:
        """As S3 does."""
        return True

    @property
    def seconds(self) -> float:
        """How long the requests take."""
        return LATENCY_S * sum(count / threads for threads, count in self.requests.items())


def _threads() -> int:
    """How many threads do the work that this one has part in."""
    pooled = threading.current_thread().name.startswith("several")
    return READERS if pooled else 1


@contextlib.contextmanager
def counted() -> Iterator[Bucket]:
    """Every store that is opened in the block is one that counts."""
    bucket: list[Bucket] = []

    def backend(uri: str, _: object) -> Bucket:
        if not bucket:
            bucket.append(Bucket(FolderBackend(Path(uri))))
        return bucket[0]

    with mock.patch.object(opening, "_backend", backend):
        first = Bucket(FolderBackend(Path()))
        yield first
    if bucket:
        first.requests, first.calls = bucket[0].requests, bucket[0].calls


def real_run(folder: Path) -> Path:
    """The store of a run of the tiny pipeline by the command line."""
    spec = write_project(folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "flows.cli"]
    try:
        subprocess.run([*command, "run", str(spec)], cwd=folder, env=environment, check=True, capture_output=True)
    finally:
        subprocess.run([*command, "down"], cwd=folder, env=environment, check=False, capture_output=True)
    return folder / ".trainwright"


def multiply(store: Path, runs: int) -> str:
    """Copy the records of the store's one run until there are so many; returns the newest run's id."""
    [first] = [path.name for path in (store / "runs").iterdir()]
    [trigger] = (store / "triggers").iterdir()
    files = [path for path in (store / "runs" / first).rglob("*") if path.is_file()]
    originals = {}
    for path in [*files, trigger]:
        name, data = str(path.relative_to(store)), path.read_bytes()
        originals[name.replace(trigger.name, first)] = data.replace(trigger.name.encode(), first.encode())
    renamed = [_renamed_all(originals, number) for number in range(PIPELINES)]
    run_id = first
    for number in range(1, runs):
        run_id = f"{first.rpartition('-')[0]}-{number:06x}"
        for folder in {Path(name.replace(first, run_id)).parent for name in renamed[0]}:
            (store / folder).mkdir(parents=True, exist_ok=True)
        for name, data in renamed[number % PIPELINES].items():
            path = name.replace(first, run_id)
            (store / path).write_bytes(_moved(data, first, run_id))
    return run_id


def _renamed_all(originals: Mapping[str, bytes], number: int) -> dict[str, bytes]:
    """The files of the first run as a run of another pipeline would have them; number 0 is its own."""
    files = {name: _renamed(name, data, number) for name, data in originals.items()}
    for name in filter(layout.is_run_names, originals):
        noted = json.loads(originals[name])
        noted["covers"] = {path: len(files[path]) for path in noted["covers"]}
        files[name] = _renamed(name, json.dumps(noted).encode(), number)
    return files


def _renamed(name: str, data: bytes, number: int) -> bytes:
    if not data.startswith(b"{"):
        return data
    record = json.loads(data)
    path = record.pop("path")
    del record["digest"]
    if number:
        pipeline = f"other-{number}"
        record |= {"pipeline": pipeline} if "pipeline" in record else {}
        record |= {"spec": {**record["spec"], "name": pipeline}} if "spec" in record else {}
    return write_record(path, record)


def _moved(data: bytes, first: str, run_id: str) -> bytes:
    """A file of the first run as another run would have it: a record carries its new path and digest."""
    if not data.startswith(b"{"):
        return data
    body, mark, _ = data.replace(first.encode(), run_id.encode()).rpartition(b',"digest":"')
    return body + mark + hashlib.sha256(body).hexdigest().encode() + b'"}'


def many_shards(store: Path, shards: int) -> Ref:
    """A sealed dataset of so many small files."""
    uri = layout.attempt("datasets", "many", 0)
    (store / uri).mkdir(parents=True)
    entries = []
    for number in range(shards):
        data = number.to_bytes(8, "big") * 32
        size, digest = hash_chunks([memoryview(data)])
        entries.append(FileEntry(path=f"train-{number:05}.parquet", bytes=size, blake3=digest))
        (store / uri / entries[-1].path).write_bytes(data)
    (store / layout.manifest(uri)).write_bytes(write_manifest("dataset", {}, {"parents": []}, entries)[0])
    return open_store(str(store), create=False).manifest(uri).ref


def measure(name: str, *words: str) -> dict[str, float]:
    """Carry out a command, print its row."""
    said = io.StringIO()
    began, spent = time.monotonic(), time.process_time()
    with counted() as bucket, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = trainwright(list(words))
    if code:
        raise SystemExit(f"{name} ended with exit code {code}:\n{said.getvalue()[-2000:]}")
    return _row(name, bucket, time.process_time() - spent, time.monotonic() - began)


def open_dataset(store: Path, ref: Ref, cache: Path, name: str) -> dict[str, float]:
    """Copy a dataset to this machine, or find its copy, and print the row."""
    began, spent = time.monotonic(), time.process_time()
    with counted() as bucket:
        open_store(str(store), create=False).local(ref, cache=cache)
    return _row(name, bucket, time.process_time() - spent, time.monotonic() - began)


def _row(name: str, bucket: Bucket, cpu_s: float, wall_s: float) -> dict[str, float]:
    requests = sum(bucket.requests.values())
    alone = bucket.requests[1]
    most = ", ".join(f"{call} {count:,}" for call, count in bucket.calls.most_common(3))
    client_s = CLIENT_S * requests
    times = f"{bucket.seconds:>10.1f} {client_s:>9.1f} {cpu_s:>8.1f} {wall_s:>8.1f}"
    print(f"{name:22} {requests:>9,} {alone:>9,} {times}  {most}", flush=True)
    figures = {"requests": requests, "alone": alone, "seconds": bucket.seconds, "client_s": client_s, "cpu_s": cpu_s}
    return {what: round(figure, 2) for what, figure in figures.items()}


def main() -> None:
    """Make the store, carry out the commands, print the table and, as the last line, the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="300 runs, and a dataset of 300 shards")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--from", type=Path, dest="source", metavar="STORE", help="a tiny project's store with one run")
    options = parser.parse_args()
    runs, shards = (300, 300) if options.quick else (options.runs, options.shards)
    print(machine())
    print(f"{runs:,} runs; a dataset of {shards:,} shards; {LATENCY_S * 1000:.0f} ms for each request")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.update(TRAINWRIGHT_HOME=f"{folder}/home", PREFECT_HOME=f"{folder}/prefect")
        source = options.source or real_run(folder / "made")
        # Where the spec says that the project lies, the plan would pack the same code.
        project = Path(shutil.copytree(source.parent, folder / "tiny"))
        store, spec = project / ".trainwright", str(project / "pipeline.yaml")
        began = time.monotonic()
        newest = multiply(store, runs)
        ref = many_shards(store, shards)
        print(f"made in {time.monotonic() - began:.0f} s")
        heads = f"{'requests':>9} {'alone':>9} {'seconds':>10} {'client s':>9} {'cpu s':>8} {'wall s':>8}"
        print(f"{'':22} {heads}  most of them")
        at = ["--store", str(store)]
        # The first command on this machine tries the server's promises.
        with counted(), contextlib.redirect_stdout(io.StringIO()):
            trainwright(["status", *at])
        figures = {
            "status": measure("status", "status", *at),
            "show": measure("show RUN", "show", newest, *at),
            "plan": measure("plan", "plan", spec, *at),
            "plan_new": measure("plan, a new pipeline", "plan", spec, *at, "--set", "name=unheard-of"),
            "prove": measure("prove MODEL", "prove", "tiny@champion", *at),
            "gc": measure("gc --dry-run", "gc", "--dry-run", *at),
            "open": open_dataset(store, ref, folder / "cache", "open the dataset"),
            "open_again": open_dataset(store, ref, folder / "cache", "open it again"),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
