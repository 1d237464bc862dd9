"""Wide tables: what GX is shown of the table itself is never cut short, and each column is looked at few times."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from data_contracts.contract import translation
from data_contracts.contract.findings import EXAMPLES
from data_contracts.contract.frames import scope_of
from tests.support.expectations import E, run


@pytest.mark.parametrize("columns", [EXAMPLES - 1, EXAMPLES, EXAMPLES + 1, 3 * EXAMPLES])
def test_the_set_of_columns_is_compared_whole(columns: int) -> None:
    names = [f"c{number:03d}" for number in range(columns)]
    table = pa.table({name: [1, 2] for name in names})
    asked = E("table_columns_to_match_set", column_set=names, exact_match=True)
    assert run(table, asked, rows=1, resources=None).accepted
    assert not run(table.drop_columns(names[-1:]), asked, rows=1, resources=None).accepted


def test_a_column_is_looked_at_no_more_often_in_a_wider_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an expectation for each of 2,000 columns, a look at all columns for each would be 4,000,000 looks."""
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(2_000)])
    entries = [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": name}} for name in schema.names]
    looks: Counter[str] = Counter()
    real = translation.kind_of
    monkeypatch.setattr(translation, "kind_of", lambda kind: looks.update(["kind"]) or real(kind))
    plans = translation.translated(dict(enumerate(entries)), schema)
    assert not any(isinstance(one, str) for one in plans.values())
    assert looks["kind"] <= 2 * len(entries)
    assert [scope_of(one, schema).layout.columns for one in entries] == [(name,) for name in schema.names]
