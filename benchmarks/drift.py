"""How often drift is alarmed of two samples of one distribution, and how often a small shift is found.

    python benchmarks/drift.py [--quick]

A table of eight columns: normal, log-normal, rounded, heavy-tailed and whole numbers, two columns of categories (one
with 3,000 of them), and a flag; a tenth of one column is missing. For each number of rows, two samples of one
distribution are profiled and compared with the default thresholds, 1,000 times. An alarm is a column that moved;
`beyond_chance` counts, in addition, changes that are called certain but negligible. At 5,000,000 rows, there are 1,000
pairs of multinomial counts in the bins of one sample, and 20 pairs of full rows. Neither rate may be rejected as above
1 % by an exact binomial test (5 %). Then one column is shifted by 0.2 standard deviations at 50,000 rows.
"""

from __future__ import annotations

import argparse
import json
import math
import time

import numpy as np
import pyarrow as pa
from numpy.random import Generator

from data_contracts.profile.drift import compared
from data_contracts.profile.profile import profile_of
from data_contracts.records import ColumnProfile, Profile
from infra.machine import num_cores

RATE = 0.01
_CITIES = [f"city {number}" for number in range(3000)]
_KINDS = [f"kind {number}" for number in range(12)]


def table(draw: Generator, rows: int, shift: float = 0.0) -> pa.Table:
    """A sample; `shift` moves the column `normal` by so many standard deviations."""
    zipf = np.minimum(draw.zipf(1.3, rows), len(_CITIES)) - 1
    kinds = np.minimum(draw.geometric(0.3, rows), len(_KINDS)) - 1
    return pa.table(
        {
            "normal": draw.normal(shift, 1, rows),
            "price": draw.lognormal(3, 1, rows),
            "rounded": np.round(draw.normal(100, 5, rows), 1),
            "heavy": draw.standard_t(2, rows),
            "count": pa.array(draw.poisson(7, rows), mask=draw.random(rows) < 0.1),
            "city": pa.DictionaryArray.from_arrays(pa.array(zipf.astype(np.int32)), _CITIES).cast(pa.string()),
            "kind": pa.DictionaryArray.from_arrays(pa.array(kinds.astype(np.int32)), _KINDS).cast(pa.string()),
            "flag": draw.random(rows) < 0.02,
        }
    )


def profile(sample: pa.Table) -> Profile:
    """The profile of a sample."""
    return profile_of(sample.to_batches(1 << 16), sample.schema, [], num_cores())


def drawn_again(draw: Generator, column: ColumnProfile) -> ColumnProfile:
    """A profile whose counts are drawn from the shares of this one's bins, or of its values."""
    nulls = int(draw.binomial(column.rows, column.nulls / column.rows))
    values = column.rows - nulls
    assert column.bins is not None
    counts = draw.multinomial(values, np.array(column.bins.counts) / column.values)
    again = {"nulls": nulls, "bins": column.bins.model_copy(update={"counts": counts.tolist()})}
    if column.sample is not None and column.sample.counts:
        shares = np.array([*column.sample.counts, column.values - sum(column.sample.counts)]) / column.values
        texts = draw.multinomial(values, shares).tolist()[:-1]
        again["sample"] = column.sample.model_copy(update={"counts": texts})
    return column.model_copy(update=again)


def alarms(pairs: int, pair) -> tuple[int, int, dict[str, int]]:
    """In how many pairs a column moved, in how many one differs beyond chance, and how often each differs."""
    found, certain, of_columns = 0, 0, {}
    for _ in range(pairs):
        report = compared(*pair(), "before")
        apart = [one.column for one in report.columns if one.verdict != "same"]
        found += bool(report.moved)
        certain += bool(apart)
        for name in apart:
            of_columns[name] = of_columns.get(name, 0) + 1
    return found, certain, of_columns


def above_rate_p(found: int, of: int) -> float:
    """The probability of so many alarms or more, at a rate of 1 %."""
    return sum(math.comb(of, k) * RATE**k * (1 - RATE) ** (of - k) for k in range(found, of + 1))


def main() -> None:
    """Print one JSON object."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--quick", action="store_true", help="a fiftieth of the draws, and no full rows at 5,000,000")
    quick = asked.parse_args().quick
    draw = np.random.default_rng(20261123)
    pairs = 20 if quick else 1000
    results = {}

    def told(name: str, of: int, pair) -> None:
        began = time.process_time()
        found, certain, columns = alarms(of, pair)
        counts = {"alarms": found, "beyond_chance": certain, "of": of, "columns": columns}
        results[name] = {**counts, "p_above_1_percent": round(above_rate_p(certain, of), 4)}
        print(name, results[name], f"{time.process_time() - began:.0f} s of processor time", flush=True)

    for rows in (500, 50_000):
        told(f"same, {rows:,} rows", pairs, lambda rows=rows: (profile(table(draw, rows)), profile(table(draw, rows))))
    large = profile(table(draw, 500_000 if quick else 5_000_000))

    def multinomial() -> Profile:
        return large.model_copy(update={"columns": [drawn_again(draw, one) for one in large.columns]})

    told(f"same, {large.rows:,} rows, multinomial", pairs, lambda: (multinomial(), multinomial()))
    if not quick:
        told("same, 5,000,000 full rows", 20, lambda: (large, profile(table(draw, 5_000_000))))
    moved = lambda: (profile(table(draw, 50_000)), profile(table(draw, 50_000, shift=0.2)))  # noqa: E731
    told("shift of 0.2 standard deviations, 50,000 rows", pairs, moved)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
