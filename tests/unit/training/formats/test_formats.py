"""Both formats: what one writes the other end reads, and what cannot be held is refused with column and reason."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.errors import CorruptError, UsageError
from tests.support.shard_rows import shard_reader
from tests.support.splits import normalised
from tests.unit.training.formats import rows
from training import formats
from training.formats import schema

BOTH = pytest.mark.parametrize("name", ["parquet", "tfrecord"])


def _write(name: str, table: pa.Table, folder: Path) -> Path:
    path = folder / f"shard{formats.get(name).SUFFIX}"
    formats.write_shard(name, table, path)
    return path


@pytest.mark.parametrize(("array", "text"), {**rows.COLUMNS, **rows.PARQUET_ONLY}.values())
def test_each_kind_of_column_has_one_form(array, text):
    table = normalised(pa.table({"x": array}))
    assert schema.columns_of(table.schema) == {"x": text}
    assert schema.from_json(schema.to_json(table.schema)).equals(table.schema, check_metadata=True)
    assert normalised(table).equals(table)


@BOTH
@pytest.mark.parametrize("number", [0, 1, 70_000])
def test_the_pieces_of_a_shard_are_its_file(name, number, tmp_path):
    table = pa.table({"x": pa.array(range(number), pa.int64()), "y": pa.array([f"{one % 7}" for one in range(number)])})
    pieces = [piece.tobytes() for piece in formats.get(name).encode(table)]
    assert b"".join(pieces) == _write(name, table, tmp_path).read_bytes()
    assert len(pieces) <= 1 + number // 8_000  # few: each goes through Python


@BOTH
@pytest.mark.parametrize("start", [0, 99], ids=["every kind", "no rows"])
def test_what_is_written_is_read(name, start, tmp_path):
    table = normalised(rows.every_kind()).slice(start)
    formats.get(name).refuse(table)
    read = shard_reader(name)(_write(name, table, tmp_path), table.schema)
    read.validate(full=True)
    assert read.schema.equals(table.schema, check_metadata=True)
    for column in table.column_names:
        assert read[column].equals(table[column]), column


@BOTH
def test_columns_are_read_in_the_order_asked_for(name, tmp_path):
    table = normalised(rows.every_kind())
    path = _write(name, table, tmp_path)
    assert shard_reader(name)(path, table.schema, ["string", "int8"]).equals(table.select(["string", "int8"]))
    with pytest.raises(UsageError, match="no column 'nope'"):
        shard_reader(name)(path, table.schema, ["nope"])


@BOTH
def test_blocks_are_the_shard_in_order(name, tmp_path):
    table = normalised(pa.table({"x": range(200_000), "s": [str(n) for n in range(200_000)]}))
    path = _write(name, table, tmp_path)
    blocks = list(formats.get(name).read_blocks(path, table.schema, ["s", "x"]))
    assert len(blocks) > 3
    assert pa.concat_tables(blocks).equals(table.select(["s", "x"]))
    for start in (1, blocks[0].num_rows, blocks[0].num_rows + 1, 199_999, 200_000):
        rest = list(formats.get(name).read_blocks(path, table.schema, start=start))
        assert all(block.num_rows for block in rest)
        assert sum(block.num_rows for block in rest) == 200_000 - start
        assert pa.concat_tables([table.slice(0, start), *rest]).equals(table)


@BOTH
@settings(deadline=None, max_examples=40)
@given(cuts=st.lists(st.integers(0, 12), max_size=5), offset=st.integers(0, 3))
def test_the_bytes_do_not_depend_on_chunks(name, cuts, offset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    table = pa.concat_tables([normalised(rows.every_kind())] * 4)
    plain = _write(name, table.combine_chunks(), folder).read_bytes()
    bounds = sorted({0, *cuts, 12})
    pieces = [table.slice(a, b - a) for a, b in pairwise(bounds)]
    padded = pa.concat_tables([table.slice(0, offset), *pieces]).slice(offset)
    assert _write(name, padded, folder).read_bytes() == plain


@BOTH
def test_the_bytes_of_many_pages_do_not_depend_on_chunks(name, tmp_path):
    # Parquet ends a page of tensors where a chunk ends, once there is more than one page (1 MiB).
    table = normalised(pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(range(200_000)), 10)}))
    plain = _write(name, table, tmp_path).read_bytes()
    assert _write(name, pa.concat_tables([table.slice(0, 777), table.slice(777)]), tmp_path).read_bytes() == plain


@pytest.mark.parametrize("column", rows.PARQUET_ONLY)
def test_what_parquet_alone_holds_is_refused_for_tfrecord_with_column_and_reason(column, tmp_path):
    table = normalised(pa.table({column: rows.PARQUET_ONLY[column][0]}))
    formats.get("parquet").refuse(table)
    read = shard_reader("parquet")(_write("parquet", table, tmp_path), table.schema)
    assert str(read[column].to_pylist()) == str(table[column].to_pylist())
    with pytest.raises(
        UsageError, match=f"Column '{column}' cannot be stored as TFRecord: it holds|is float64|nothing"
    ):
        formats.get("tfrecord").refuse(table)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (pa.table({"x": [{"a": 1}]}), "Column 'x' has the type struct<a: int64>, which a shard cannot hold"),
        (
            pa.table({"x": pa.RunEndEncodedArray.from_arrays([2, 3], ["x", None])}),
            "Column 'x' has the type run_end_encoded",
        ),
        (pa.table({"x": [[["a"], []]]}), "Column 'x' has the type list<item: list<item: string>>"),
        (pa.table({"x": [[[1, 2], None], [[3, 4], [5, 6]]]}), "Column 'x' has the type list<item: list<item: int64>>"),
        (
            pa.table({"x": pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.int8(), (2, 1), permutation=[1, 0]),
                pa.array([[1, 2]], pa.list_(pa.int8(), 2)))}),
            "Column 'x' is a tensor whose dimensions are permuted",
        ),
        (
            pa.table({"x": pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.int8(), (2,)), pa.array([[1, None]], pa.list_(pa.int8(), 2)))}),
            "Column 'x' has the type .*fixed_shape_tensor.* with values that are null",
        ),
        (pa.table([[1], [2]], names=["x", "x"]), "Two columns are called 'x'"),
        (
            pa.table([pa.array([b"abc"], pa.binary(3))], schema=pa.schema([pa.field(
                "x", pa.binary(3), metadata={b"shape": b"[2,2]", b"dtype": b"uint8"})])),
            "Column 'x' says shape .2, 2. of uint8, but its rows have 3 bytes",
        ),
    ],
)  # fmt: skip
def test_what_no_shard_holds_is_refused(table, sentence):
    with pytest.raises(UsageError, match=sentence):
        normalised(table)


def test_a_newer_schema_is_refused():
    with pytest.raises(UsageError, match=f"version {schema.VERSION + 1}, newer"):
        schema.from_json({"schema_version": schema.VERSION + 1, "columns": []})
    with pytest.raises(CorruptError, match="unknown column type 'tensor<nope>'"):
        schema.from_json({"schema_version": 1, "columns": [{"name": "x", "type": "tensor<nope>"}]})


@pytest.mark.parametrize(
    ("table", "keep", "field", "sentence"),
    [
        *((pa.table({"x": [1]}), keep, pa.field("x", pa.int64()), "shard.parquet") for keep in (0.0, 0.5, 0.99)),
        # A few bytes do not stand for a row group of any size.
        (
            pa.table({"x": pa.nulls(70_000, pa.int64())}), 1.0, pa.field("x", pa.int64()),
            "shard.parquet has 70,000 rows in a row group, and ours have 65,536",
        ),
        (
            pa.table({"x": [1]}), 1.0, pa.field("x", pa.int32()),
            "holds 'x' as int64, but its dataset's schema says int32",
        ),
        (pa.table({"x": [1]}), 1.0, pa.field("y", pa.int32()), "has no column 'y'"),
    ],
)  # fmt: skip
def test_a_parquet_file_that_is_cut_or_not_ours_is_refused(table, keep, field, sentence, tmp_path):
    path = tmp_path / "shard.parquet"
    pq.write_table(table, path, row_group_size=70_000)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(CorruptError, match=sentence):
        shard_reader("parquet")(path, pa.schema([field]))
