"""Columns of two sides are brought to one type, or refused in a sentence that names the field and quotes no value."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import SCORED, TRAINED, Side
from tests.support.sealed_rows import sealed
from training.contamination.exact import _common, open_sides

EXACT = 2**53
FIELD = "contract.contamination.columns"


def sides_of(root: Path, train: pa.Array, test: pa.Array) -> tuple[list[Side], list[Path]]:
    tables = {"train": (pa.table({"x": train}), TRAINED), "test": (pa.table({"x": test}), SCORED)}
    sides = [
        Side(name=name, dataset=sealed(root, name, {name: table}), split=name, use=use, own=True)
        for name, (table, use) in tables.items()
    ]
    return sides, [root / side.dataset.ref.uri for side in sides]


def test_whole_numbers_beyond_double_are_refused_without_their_value(tmp_path: Path) -> None:
    sides, folders = sides_of(tmp_path, pa.array([1, EXACT + 1]), pa.array([1.0]))
    compared = open_sides(sides, folders, {"x": FIELD}, lambda: None)
    with pytest.raises(UsageError, match=rf"^{FIELD}: column 'x' is int64 in train and double beside it") as raised:
        list(compared.blocks(compared.sides[0], ["x"]))
    assert str(EXACT + 1) not in raised.value.message + raised.value.remedy


def test_types_that_do_not_compare_are_refused(tmp_path: Path) -> None:
    sides, folders = sides_of(tmp_path, pa.array(["a"]), pa.array([1.0]))
    with pytest.raises(UsageError, match=rf"^{FIELD}: column 'x' is string in train and double in test"):
        open_sides(sides, folders, {"x": FIELD}, lambda: None)


@pytest.mark.parametrize(
    "kind", [pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()), pa.list_(pa.struct([("a", pa.int64())]))]
)
def test_nested_values_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    """The shard stage refuses them before; a dataset that another version wrote may have them."""
    sides, folders = sides_of(tmp_path, pa.array([1]), pa.array([1]))
    opened = open_sides(sides, folders, {}, lambda: None).sides
    for side in opened:
        side.shards.schema = pa.schema([("x", kind)])
    with pytest.raises(UsageError, match=rf"^{FIELD}: column 'x' is (struct|map|list).*, which cannot be compared"):
        _common(opened, "x", FIELD)
