"""A table with more columns than examples are kept: what GX is shown of the table itself is never cut short."""

from __future__ import annotations

import pyarrow as pa
import pytest

from data_contracts.contract.engine import check
from data_contracts.contract.findings import EXAMPLES


@pytest.mark.parametrize("columns", [EXAMPLES - 1, EXAMPLES, EXAMPLES + 1, 3 * EXAMPLES])
def test_the_set_of_columns_is_compared_whole(columns: int) -> None:
    names = [f"c{number:03d}" for number in range(columns)]
    table = pa.table({name: [1, 2] for name in names})
    kwargs = {"column_set": names, "exact_match": True}
    asked = {"type": "expect_table_columns_to_match_set", "kwargs": kwargs, "severity": "critical"}

    def outcome(held: pa.Table) -> bool:
        suite = {"name": "wide", "expectations": [asked]}
        read = lambda wanted: (held if wanted is None else held.select(wanted)).to_batches(1)  # noqa: E731
        return check(suite, read, fail_on="critical", sensitive=[], resources=None).accepted

    assert outcome(table)
    assert not outcome(table.drop_columns(names[-1:]))
