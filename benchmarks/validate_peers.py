"""The peers of `validate.py`: runs in their environment and answers how long a check took, in seconds.

Each checks a frame that is in memory already, as its users do, against the same expectations, as far as it has them.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import serve

Expectation = dict[str, Any]


class Pandera:
    """A `DataFrameSchema` over a pandas frame, all failures collected (`lazy`)."""

    packages = ("pandera", "pandas")

    def __init__(self, path: Path) -> None:
        import pandas
        import pandera.pandas

        self.pandera, self.frame = pandera.pandas, pandas.read_parquet(path)

    def check(self, expectations: list[Expectation]) -> int:
        """Check; how many of the expectations it was asked."""
        checks: dict[str, list[Any]] = defaultdict(list)
        settings: dict[str, dict[str, bool]] = defaultdict(lambda: {"nullable": True})
        rows = []
        for one in expectations:
            name, kwargs = one["type"].removeprefix("expect_"), one["kwargs"]
            column = kwargs.get("column", "")
            if name == "column_values_to_not_be_null" and "mostly" not in kwargs:
                settings[column]["nullable"] = False
            elif name == "column_values_to_be_unique":
                settings[column]["unique"] = True
            elif name == "table_row_count_to_be_between":
                rows.append(self.pandera.Check(lambda frame, low=kwargs["min_value"]: len(frame) >= low))
            else:
                checks[column].append(self._check(name, kwargs))
        names = {*checks, *settings}
        columns = {name: self.pandera.Column(checks=checks[name], **settings[name]) for name in sorted(names)}
        self.pandera.DataFrameSchema(columns, checks=rows).validate(self.frame, lazy=True)
        return len(expectations)

    def _check(self, name: str, kwargs: dict[str, Any]) -> Any:
        check = self.pandera.Check
        low, high = kwargs.get("min_value", float("-inf")), kwargs.get("max_value", float("inf"))
        if name == "column_values_to_not_be_null":
            return check(lambda values: values.notna().mean() >= kwargs["mostly"], ignore_na=False)
        if name == "column_values_to_be_between":
            return check.in_range(low, high)
        if name == "column_values_to_be_in_set":
            return check.isin(kwargs["value_set"])
        if name == "column_value_lengths_to_be_between":
            return check.str_length(low, high)
        figure = {
            "column_mean_to_be_between": "mean", "column_stdev_to_be_between": "std", "column_sum_to_be_between": "sum",
            "column_min_to_be_between": "min", "column_max_to_be_between": "max",
            "column_unique_value_count_to_be_between": "nunique",
        }[name]  # fmt: skip
        return check(lambda values: low <= getattr(values, figure)() <= high, ignore_na=False)


class Pointblank:
    """A `Validate` over a polars frame, without copies of the rows that fail."""

    packages = ("pointblank", "polars")

    def __init__(self, path: Path) -> None:
        import pointblank
        import polars

        self.pointblank, self.frame = pointblank, polars.read_parquet(path)

    def check(self, expectations: list[Expectation]) -> int:
        """Check; how many of the expectations it was asked, since it has no least, greatest or distinct value."""
        plan, asked = self.pointblank.Validate(self.frame), 0
        for one in expectations:
            for method, arguments in _steps(one["type"].removeprefix("expect_"), one["kwargs"]):
                plan = getattr(plan, method)(**arguments)
            asked += bool(_steps(one["type"].removeprefix("expect_"), one["kwargs"]))
        if not plan.interrogate(collect_extracts=False, collect_tbl_checked=False).all_passed():
            raise RuntimeError("Pointblank rejected the table")
        return asked


def _steps(name: str, kwargs: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Pointblank's methods for an expectation, with their arguments."""
    column, low, high = kwargs.get("column"), kwargs.get("min_value"), kwargs.get("max_value")
    if name == "column_values_to_not_be_null":
        share = {"p": 0.01, "tol": 0.09}  # what `mostly: 0.9` accepts, by its nearest method
        return [("col_pct_null", {"columns": column, **share} if "mostly" in kwargs else {"columns": column, "p": 0})]
    if name == "column_values_to_be_between":
        return [("col_vals_between", {"columns": column, "left": low, "right": high, "na_pass": True})]
    if name == "column_values_to_be_in_set":
        return [("col_vals_in_set", {"columns": column, "set": kwargs["value_set"]})]
    if name == "column_value_lengths_to_be_between":
        return [("col_vals_str_len", {"columns": column, "min_val": low, "max_val": high})]
    if name == "column_values_to_be_unique":
        return [("rows_distinct", {"columns_subset": [column]})]
    figures = {
        "column_mean_to_be_between": "avg",
        "column_stdev_to_be_between": "sd",
        "column_sum_to_be_between": "sum",
    }
    bounds = (("ge", low), ("le", high)) if name in figures else ()
    return [
        (f"col_{figures[name]}_{relation}", {"columns": column, "value": bound})
        for relation, bound in bounds
        if bound is not None
    ]


PEERS = {"pandera": Pandera, "pointblank": Pointblank}


def main() -> None:
    """Answer `versions` and `check` (the expectations) requests about one Parquet file."""
    peer = PEERS[sys.argv[1]](Path(sys.argv[2]))
    expectations: list[Expectation] = json.loads(Path(sys.argv[3]).read_text())

    def answer(what: str) -> Any:
        if what == "versions":
            return {package: importlib.metadata.version(package) for package in peer.packages}
        since = time.perf_counter()
        asked = peer.check(expectations)
        return {"seconds": time.perf_counter() - since, "expectations": asked}

    serve(answer)


if __name__ == "__main__":
    main()
