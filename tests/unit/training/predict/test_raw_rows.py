"""Rows in the types of the training, in batches that do not depend on where reading began."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.files import file_digest
from training.predict import raw_rows
from training.predict.raw_rows import block_rows, look_at, type_from


def opened(folder: Path, types: dict[str, str], keep: tuple[str, ...] = ()) -> raw_rows.RawRows:
    files, sources = [], []
    for path in sorted(folder.iterdir()):
        format_ = {".csv": "csv", ".gz": "csv", ".jsonl": "jsonl"}.get(path.suffix, "parquet")
        sources.append(SourceSpec(uri=str(path)))
        files.append(
            SourceFile(
                uri=str(path), bytes=path.stat().st_size, blake3=file_digest(path), format=format_, source=len(files)
            )
        )
    return look_at(files, sources, folder, types, list(keep))


def test_types_are_those_of_the_training_and_not_of_a_small_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,x,z\n1,2,3\n")
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("z,y,x\n9,1,\n")
    raw = opened(tmp_path, {"x": "double", "gone": "string", "y": "string"}, ("z",))
    assert raw.schema == pa.schema([("x", pa.float64()), ("y", pa.string()), ("z", pa.int64())])
    assert (raw.trained, raw.absent, raw.total) == (["x", "y"], ["gone"], None)
    rows = pa.Table.from_batches([batch for _, batch in raw.batches(0, 8)])
    assert rows.to_pydict() == {"x": [2.0, None], "y": ["1", "1"], "z": [3, 9]}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_batches_are_the_same_from_any_block_on(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_rows, "TRANSFORM_ROWS", 3)
    for number in range(4):
        values = range(number * 5, number * 5 + 5)
        path = tmp_path / f"{number}.{suffix}"
        if suffix == "csv":
            path.write_text("x\n" + "".join(f"{one}\n" for one in values))
        else:
            pq.write_table(pa.table({"x": list(values)}), path, row_group_size=2)
    raw = opened(tmp_path, {"x": "int64"})
    assert raw.total == (None if suffix == "csv" else 20)
    every = [(at, batch.column("x").to_pylist()) for at, batch in raw.batches(0, 8)]
    assert [one for _, values in every for one in values] == list(range(20))
    assert [at for at, _ in every] == [0, 3, 6, 8, 11, 14, 16, 19]
    for first in (8, 16, 24):
        assert [(at, batch.column("x").to_pylist()) for at, batch in raw.batches(first, 8)] == [
            one for one in every if one[0] >= first
        ]


def test_a_value_of_another_type_is_named_by_its_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n1,oh\n")
    with pytest.raises(UsageError, match=r"the column y is string \(row 1 holds text\), but .* with double"):
        list(opened(tmp_path, {"x": "int64", "y": "double"}).batches(0, 8))
    (tmp_path / "a.csv").unlink()
    pq.write_table(pa.table({"x": ["1"]}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="the column x is string, but the model was trained with int64"):
        opened(tmp_path, {"x": "int64"})


def test_a_file_that_changes_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    raw = opened(tmp_path, {"x": "int64"})
    (tmp_path / "a.csv").write_text("x\n2\n")
    with pytest.raises(CorruptError):
        list(raw.batches(0, 8))


def test_blocks_are_whole_batches() -> None:
    assert [block_rows(size) for size in (1, 512, 1000, 5000)] == [4096, 4096, 5000, 5000]


@pytest.mark.parametrize(
    "kind",
    [
        pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
        pa.list_(pa.float32()), pa.binary(), pa.uint8(), pa.time64("us"),
        "struct<a: int64>", "decimal128(5, 2)",  # found from the values
    ],
)  # fmt: skip
def test_a_profiles_types_are_read_back(kind: pa.DataType | str) -> None:
    assert type_from(str(kind)) == (None if isinstance(kind, str) else kind)
