"""Finds every row that breaks an expectation, in a pass of its own by Great Expectations over the columns it reads."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from data_contracts.contract.great_expectations_engine import Check, on_whole, row_by_row
from data_contracts.contract.own_expectations import Classes
from data_contracts.contract.row_numbers import Numbers
from data_contracts.contract.rows import Read

_EVERY = {"result_format": {"result_format": "COMPLETE", "partial_unexpected_count": 0}}


def broken_rows(
    entries: Mapping[int, dict[str, Any]],
    read: Read,
    rows: int,
    schema: pa.Schema,
    sensitive: Collection[str],
    classes: Classes = MappingProxyType({}),
) -> dict[int, Numbers]:
    """The sorted numbers of all rows that break each expectation, by its index in the suite.

    An expectation that Great Expectations does not measure row by row is left out.

    Args:
        entries: entries of the suite by their index; each names rows that break it.
        rows: the number of rows.
        classes: those that the entries name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in the check: GX and pandas warn once for each block
        checks = [_Rows(index, asked, schema, sensitive, classes) for index, asked in entries.items()]
        row_by_row([one for one in checks if one.scope.row_wise], read, schema)
        on_whole([one for one in checks if not one.scope.row_wise], read, rows, schema)
    found = zip(entries, checks, strict=True)
    return {index: np.unique(np.concatenate(one.numbers)) for index, one in found if one.numbers and not one.error}


class _Rows(Check):
    """An expectation for which only the rows that break it are measured, but all of them.

    Attributes:
        numbers: the rows' numbers, a piece for each block.
    """

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.numbers: list[Numbers] = []

    def needs(self, engine: Any, runtime: dict[str, Any] = _EVERY) -> dict[str, Any]:
        """The list of row numbers; nothing for an expectation that has none."""
        found = super().needs(engine, runtime)
        return {name: metric for name, metric in found.items() if name.endswith(".unexpected_index_list")}

    def merge(self, measured: dict[Any, Any]) -> None:
        """Add the rows of another block."""
        self.numbers.extend(np.asarray(listed, np.int64) for listed in measured.values())

    def judge(self, engine: Any, metrics: dict[Any, Any]) -> None:
        """Do nothing: the verdict is known."""
