"""What cheap measures show of Parquet files, and what they leave to the measures as they are written."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.arrow_rows import Data
from data_contracts.contract import scan
from data_contracts.contract.questions import DISTINCT, Measure, between, in_set
from data_contracts.contract.scan import scanned
from tests.support.expectations import RESOURCES, in_files, reader, unread

NAN, INF = math.nan, math.inf
SCHEMA = pa.schema([("x", pa.float64()), ("n", pa.int64()), ("s", pa.string())])
INSIDE = between({"column": "x", "min_value": 0, "max_value": 2, "strict_max": True}, "real").measures[1]
LEAST, GREATEST = scan.least_and_greatest(INSIDE)


@pytest.mark.parametrize(
    ("least", "greatest", "shown"),
    [(0.0, 1.9, True), (-0.0, 1.9, True), (0.0, 2.0, False), (-1e-300, 1.0, False), (None, None, True),
     (0.0, NAN, False), (0.0, INF, False)],
)  # fmt: skip
def test_no_value_is_out_of_bounds_if_both_ends_keep_them(least: Any, greatest: Any, shown: bool) -> None:
    assert scan.values_shown([INSIDE], {LEAST: least, GREATEST: greatest}, SCHEMA) == ({INSIDE: 0} if shown else {})


@pytest.mark.parametrize(
    ("low", "high", "rows", "marked"),
    [(1, 9, 1, True), (-(2**63), 2**63 - 1, 10**9, False), (0, 2**20 - 1, 1, True), (0, 2**20, 1, False),
     (0, 2**20, 2**15, True), (0, 2**32, 10**9, False), (0, 10**9 - 1, 10**9, True), (0, 10**9, 10**9, False),
     (None, None, 0, False)],
)  # fmt: skip
def test_distinct_integers_are_marked_where_duckdb_takes_the_bitmap(
    low: Any, high: Any, rows: int, marked: bool
) -> None:
    assert (scan.distinct_by_bitmap(Measure(DISTINCT, "n"), low, high, rows, 2**31) is not None) is marked
    assert scan.distinct_by_bitmap(Measure(DISTINCT, "n"), low, high, rows, 2**3) is None or high - low < 2**3


FAR = [-(2**63), 2**63 - 1, -(2**63), None]
NEAR = [-5, 7, 7, None]


@pytest.mark.parametrize("numbers", [NEAR, FAR, [None] * 4], ids=["near", "far", "none"])
@pytest.mark.parametrize(
    "reals",
    [[0.0, 1.0, 1.5, None], [0.0, NAN, 1.5, -1.0], [NAN, NAN, 1.5, 1.0], [NAN] * 4, [None] * 4, [INF, 0.5, None, 3.0]],
    ids=["clean", "broken and NaN", "NaN", "all NaN", "none", "infinite"],
)
def test_parquet_and_batches_give_the_same_values(reals: list[Any], numbers: list[Any]) -> None:
    table = pa.table({"x": pa.array(reals, pa.float64(), from_pandas=False), "n": numbers, "s": ["a", "b", "a", None]},
                     schema=SCHEMA)  # fmt: skip
    listed = in_set({"column": "s", "value_set": ["a", "c"]}, "text").measures
    both = Measure("count(CASE WHEN {c} > {c1} THEN 1 END)", "x", more=("n",))
    equal = Measure("count(CASE WHEN {c} = ?::VARCHAR THEN 1 END)", "s", ("b",))  # after it, parameters of a subquery
    asked = [equal, INSIDE, Measure("count({c})", "x"), Measure("sum(abs({c}))", "x"), Measure(DISTINCT, "n"),
             Measure(DISTINCT, "s"), both, *listed]  # fmt: skip
    direct = scanned(asked, Data(SCHEMA, unread, in_files(table, 3)), [*"xns"], RESOURCES)
    assert direct is not None
    assert direct == scanned(asked, Data(SCHEMA, reader(table)), [*"xns"], RESOURCES)
