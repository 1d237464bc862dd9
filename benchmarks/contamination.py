"""Finds rows that were planted in two splits: how many of them, whether any is invented, and how long it takes.

    python benchmarks/contamination.py [--quick]

- exact: 1,000,000 rows of 22 columns; 100 rows of test are copies of rows of train, half of them with another label
- near: 100,000 texts of about 400 characters; 2,000 texts of test are texts of train with some words replaced

The last line has the shares that were found, which do not depend on the machine's load, and seconds, which do.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import common

from data_contracts.messages.raw_data import SCORED, TRAINED, Side
from data_contracts.pipeline_spec import NearSpec
from tests.support.sealed_rows import compared, sealed
from training.contamination import exact
from training.contamination.exact import Compared
from training.contamination.near import find_near

T = TypeVar("T")

ROWS, QUICK_ROWS = 1_000_000, 100_000
TEXTS, QUICK_TEXTS = 100_000, 10_000
PLANTED, CHANGED = 100, 2_000
WORDS = [f"{a}{b}{c}{d}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst" for d in "aeiou"]


def opened(root: Path, train: pa.Table, test: pa.Table, columns: list[str], shard_rows: int) -> Compared:
    """Train and test as two sides of a dataset."""
    dataset = sealed(root, "made", {"train": train, "test": test}, shard_rows)
    uses = (("train", TRAINED), ("test", SCORED))
    return compared(root, [Side(name=n, dataset=dataset, split=n, use=u, own=True) for n, u in uses], columns)


def timed(work: Callable[[], T]) -> tuple[T, float, float]:
    """What `work` makes, its seconds, and its processor seconds."""
    begun, cpu = time.perf_counter(), time.process_time()
    made = work()
    return made, round(time.perf_counter() - begun, 2), round(time.process_time() - cpu, 2)


def measure_exact(root: Path, rows: int) -> dict[str, float]:
    """Planted copies of rows: how many are found, and how long it takes."""
    draw = np.random.default_rng(common.SEED)
    table = pa.table(
        {f"real{i}": draw.standard_normal(rows) for i in range(16)}
        | {f"whole{i}": draw.integers(0, 10, rows) for i in range(3)}
        | {"text": pa.array([f"row {i % 5000}" for i in range(rows)]), "seen": pa.nulls(rows, pa.float64())}
        | {"label": draw.integers(0, 2, rows)}
    )
    cut = rows * 9 // 10
    train, test = table.slice(0, cut), table.slice(cut)
    planted = train.take(pa.array(np.sort(draw.choice(cut, PLANTED, replace=False))))
    flipped = [1 - label if i % 2 else label for i, label in enumerate(planted["label"].to_pylist())]
    planted = planted.set_column(planted.schema.get_field_index("label"), "label", pa.array(flipped))
    test = pa.concat_tables([planted, test.slice(PLANTED)]).take(pa.array(draw.permutation(rows - cut)))
    columns = [name for name in table.schema.names if name != "label"]
    sides = opened(root, train, test, [*columns, "label"], 200_000)

    def find():
        return exact.find_shared(sides, exact.record(sides, columns, ["label"], root), root)

    shared, seconds, cpu = timed(find)
    [one] = shared.overlaps(sides.sides)
    found = {"rows": rows, "found": one.later_rows, "planted": PLANTED, "conflicting": one.conflicting}
    return {**found, "exact_s": seconds, "exact_cpu_s": cpu, "peak_mb": _peak_mb()}


def measure_near(root: Path, count: int) -> dict[str, float]:
    """Planted near duplicates of texts: how many are found, and how long it takes."""
    draw = random.Random(common.SEED)
    texts = [" ".join(draw.choices(WORDS, k=80)) for _ in range(count)]
    cut = count * 9 // 10
    train, test = texts[:cut], texts[cut:]
    changed = min(CHANGED, len(test))
    for i in range(changed):
        parts = train[i].split()
        for at in draw.sample(range(80), 1 + i % 10):
            parts[at] = draw.choice(WORDS)
        test[i] = " ".join(parts)
    tables = [pa.table({"text": one}) for one in (train, test)]
    sides = opened(root, *tables, ["text"], 20_000)
    near, seconds, cpu = timed(lambda: find_near(sides, NearSpec(column="text"), root))
    similar = [_jaccard(train[i], test[i]) for i in range(changed)]
    above = {i for i, one in enumerate(similar) if one >= 0.8}
    found = set(np.flatnonzero(near.mask(0)).tolist())
    return {
        "texts": count,
        "near_planted": len(above),
        "near_found": round(len(found & above) / len(above), 4),
        "near_invented": len(found - above),
        "near_s": seconds,
        "near_cpu_s": cpu,
        "near_peak_mb": _peak_mb(),
    }


def _jaccard(a: str, b: str) -> float:
    one, other = ({text[i : i + 5] for i in range(len(text) - 4)} for text in (a, b))
    return len(one & other) / len(one | other)


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    """Print all figures."""
    quick = "--quick" in sys.argv
    with common.scratch() as folder:
        figures = measure_exact(folder / "exact", QUICK_ROWS if quick else ROWS)
        figures |= measure_near(folder / "near", QUICK_TEXTS if quick else TEXTS)
    for name, value in figures.items():
        print(f"{name:14} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
