"""Rows in the form that shards have, for tests of the formats."""

from __future__ import annotations

import pyarrow as pa

from training.formats.schema import conform_rows, finish, narrow


def normalised(table: pa.Table) -> pa.Table:
    """The same rows with every column in the form that shards have, all fields nullable."""
    narrowed = narrow(table)
    return conform_rows(narrowed, finish(narrowed.schema, table.schema))
