"""A disk that is full, or nearly: `python -m tests.support.full_disk FOLDER STEPS`; prints one JSON object of counts.

FOLDER is a small file system of its own. Each thing that a store does is tried there with every number of free bytes
from none to STEPS pages. A try must either make all of it, or be refused as `StorageUnavailable` in one sentence; what
can be seen in the store afterwards is, file by file, what was there before or what an undisturbed try writes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from data_contracts.errors import StorageUnavailable
from infra.store import Store, open_store

PAGE_BYTES = 4096


def tries(size_bytes: int) -> dict[str, Callable[[Store], object]]:
    """What a store does, with about so many bytes each."""

    def seal(store: Store) -> None:
        writer = store.writer("datasets/k-0")
        entries = [writer.put(f"shard-{part}", b"x" * (size_bytes // 3)) for part in range(3)]
        writer.seal("dataset", {"n": 1}, {}, entries)

    def swap(store: Store) -> None:
        pointer = store.pointer("aliases/m/champion")
        pointer.swap(pointer.read(), value)

    value = {"text": "x" * size_bytes}
    return {
        "create": lambda store: store.create("runs/r/log", b"x" * size_bytes),
        "create JSON": lambda store: store.create_json("runs/r/report.json", value),
        "seal": seal,
        "make a pointer": lambda store: store.pointer("aliases/m/other").create(value),
        "move a pointer": swap,
    }


def visible(store: Store) -> dict[str, bytes]:
    """Every file that a reader of the store can see."""
    root = Path(store.uri)
    files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(path): (root / path).read_bytes() for path in files if not path.parts[0].startswith(".")}


def restore(store: Store, files: dict[str, bytes]) -> None:
    """The store as it was."""
    shutil.rmtree(store.uri)
    for name, data in files.items():
        path = Path(store.uri) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def leave_free(ballast: Path, pages: int) -> None:
    """Fill the disk except for a number of pages."""
    with ballast.open("wb") as file:
        room = os.statvfs(ballast.parent)
        taken = room.f_bavail * room.f_bsize - pages * PAGE_BYTES
        if taken > 0:
            os.posix_fallocate(file.fileno(), 0, taken)


def main(folder: Path, steps: int) -> dict[str, object]:
    """Try everything with every number of free pages."""
    store = open_store(str(folder / "store"))
    store.pointer("aliases/m/champion").create({"text": "small"})
    before, ballast = visible(store), folder / "ballast"
    counts: Counter[str] = Counter()
    problems = []
    for kind, work in tries((steps - 10) * PAGE_BYTES).items():
        work(store)
        made = visible(store)
        for pages in range(steps):
            restore(store, before)
            leave_free(ballast, pages)
            try:
                work(store)
            except StorageUnavailable as error:
                counts["refused"] += 1
                if not str(error) or "\n" in str(error):
                    problems.append(f"{kind}, {pages} pages free: not one sentence: {error}")
                expected = before
            else:
                counts["made"] += 1
                expected = made
            ballast.unlink()
            now = visible(store)
            problems += [f"{kind}, {pages} pages free: {name} is gone" for name in before if name not in now]
            problems += [
                f"{kind}, {pages} pages free: {name} is there in part"
                for name, data in now.items()
                if data not in (before.get(name), made.get(name))
            ]
            if expected is made and now != made:
                problems.append(f"{kind}, {pages} pages free: told as made, and is not all there")
            if expected is before and "datasets/k-0/manifest.json" in now:
                problems.append(f"{kind}, {pages} pages free: told as refused, and is sealed")
        restore(store, before)
    return {"tried": sum(counts.values()), **counts, "problems": problems}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
