"""Folders named `key=value` are columns, for every reader and every format, as pandas, Spark and DuckDB read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SourceSpec
from infra.sources import Places, file_facts, parquet_in_place
from infra.sources.schema_sniff import sniff_schema
from tests.unit.infra.sources.conftest import Raw


def written(raw: Raw, name: str, rows: dict[str, list[Any]]) -> Path:
    """A file of these rows, in the format that its name says."""
    if name.endswith(".parquet"):
        path = raw.write(name, b"")
        pq.write_table(pa.table(rows), path)
        return path
    if name.endswith(".csv"):
        lines = [",".join(rows), *(",".join(map(str, row)) for row in zip(*rows.values(), strict=True))]
    else:
        lines = [json.dumps(dict(zip(rows, row, strict=True))) for row in zip(*rows.values(), strict=True)]
    return raw.write(name, "\n".join(lines) + "\n")


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_folders_are_columns_as_pandas_reads_them(ending: str, raw: Raw) -> None:
    for at, (fold, label) in enumerate([("train", 0), ("train", 1), ("test", 0)]):
        written(raw, f"t/fold={fold}/label={label}/part-0.{ending}", {"x": [at, at + 10]})
    table = raw.read(f"t/**/*.{ending}")
    assert table.schema == pa.schema([("x", pa.int64()), ("fold", pa.string()), ("label", pa.int64())])
    if ending == "parquet":
        pandas = pyarrow.dataset.dataset(raw.root / "t", partitioning="hive").to_table()
        ours = table.cast(pandas.schema)
        assert sorted(ours.to_pylist(), key=str) == sorted(pandas.to_pylist(), key=str)
    assert table.to_pylist() == [
        {"x": 2, "fold": "test", "label": 0},
        {"x": 12, "fold": "test", "label": 0},
        {"x": 0, "fold": "train", "label": 0},
        {"x": 10, "fold": "train", "label": 0},
        {"x": 1, "fold": "train", "label": 1},
        {"x": 11, "fold": "train", "label": 1},
    ]
    assert raw.read(f"t/**/*.{ending}", columns=["label"]).column("label").to_pylist() == [0, 0, 0, 0, 1, 1]
    assert raw.read(f"t/**/*.{ending}", encoded=True).column("fold").to_pylist()[-1] == "train"
    switched_off = raw.read({"uri": f"t/**/*.{ending}", "hive_partitioning": False})
    assert switched_off.schema.names == ["x"]


TYPES: dict[str, tuple[list[str], pa.DataType, list[Any]]] = {
    "whole numbers": (["-3", "0", "12"], pa.int64(), [-3, 0, 12]),
    "leading zeros": (["01", "12"], pa.string(), ["01", "12"]),
    "too large": (["9" * 20], pa.string(), ["9" * 20]),
    "no value": (["__HIVE_DEFAULT_PARTITION__", "7"], pa.int64(), [None, 7]),
    "no value at all": (["__HIVE_DEFAULT_PARTITION__"], pa.string(), [None]),
    "days": (["2026-01-31", "__HIVE_DEFAULT_PARTITION__"], pa.date32(), ["2026-01-31", None]),
    "no days": (["2026-02-31"], pa.string(), ["2026-02-31"]),
    "mixed": (["2026-01-31", "7"], pa.string(), ["2026-01-31", "7"]),
    "fractions": (["1.10", "1.2"], pa.string(), ["1.10", "1.2"]),
    "escaped": (["M%C3%BCnchen", "a%2Fb%3Dc"], pa.string(), ["München", "a/b=c"]),
    "not escaped": (["100%", "a+b", "%FF"], pa.string(), ["100%", "a+b", "%FF"]),
    "other signs": (["ü [x]", "'quoted'", "a=b"], pa.string(), ["ü [x]", "'quoted'", "a=b"]),
    "digits elsewhere": (["\u0663"], pa.string(), ["\u0663"]),
}


@pytest.mark.parametrize("case", TYPES)
def test_a_column_has_one_type_over_all_files(case: str, raw: Raw) -> None:
    texts, kind, values = TYPES[case]
    for text in texts:
        written(raw, f"t/k={text}/a.parquet", {"x": [1]})
    files = raw.resolve("t/**/*.parquet")
    assert {file.column_types["k"] for file in files} == {str(kind).removesuffix("[day]")}
    read = raw.read("t/**/*.parquet").column("k")
    assert read.type == kind
    assert {None if value is None else str(value) for value in read.to_pylist()} == {
        None if value is None else str(value) for value in values
    }


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_a_column_that_is_in_the_file_too_must_agree(ending: str, raw: Raw) -> None:
    path = written(raw, f"t/label=1/a.{ending}", {"label": [1, 1], "x": [5, 6]})
    other = written(raw, f"t/label=2/a.{ending}", {"x": [7]})
    source = f"t/**/*.{ending}"
    assert raw.read(source).column("label").to_pylist() == [1, 1, 2]
    written(raw, str(path.relative_to(raw.root)), {"label": [1, 3], "x": [5, 6]})
    with pytest.raises(UsageError) as error:
        raw.read(source)
    assert f"{path}: the file's own column label has other values than the folder's name says." in str(error.value)
    assert "set hive_partitioning: false" in str(error.value)
    other.unlink()
    assert raw.read({"uri": source, "hive_partitioning": False}).column("label").to_pylist() == [1, 3]


def test_a_row_of_json_may_leave_out_what_its_folder_says(raw: Raw) -> None:
    raw.write("t/label=1/a.jsonl", '{"label": 1, "x": 1}\n{"x": 2}\n')
    assert raw.read("t/*/*.jsonl").column("label").to_pylist() == [1, 1]


PARTLY = {
    "some files": (
        ["t/fold=a/1.csv", "t/2.csv"],
        r"a folder of .*/t/fold=a/1.csv gives the column fold, and no folder",
    ),
    "other columns": (["t/a=1/1.csv", "t/b=1/1.csv"], r"gives the column (a|b), and no folder of .* does"),
    "twice": (["t/a=1/a=2/1.csv"], r"two folders of t/a=1/a=2/1.csv give the column a"),
}


@pytest.mark.parametrize("case", PARTLY)
def test_a_column_of_some_files_is_refused(case: str, raw: Raw) -> None:
    names, sentence = PARTLY[case]
    for name in names:
        written(raw, name, {"x": [1]})
    with pytest.raises(UsageError, match=rf"data.source.0.uri: .*{sentence}") as error:
        raw.resolve("t/**/*.csv")
    assert "set hive_partitioning: false" in str(error.value)
    assert len(raw.resolve({"uri": "t/**/*.csv", "hive_partitioning": False})) == len(names)


def test_only_the_path_that_a_source_writes_is_looked_at(tmp_path: Path) -> None:
    raw = Raw(tmp_path / "run=7")
    written(raw, "a.csv", {"x": [1]})
    assert raw.resolve("a.csv")[0].columns == raw.resolve(str(raw.root / "a.csv"))[0].columns == {}
    elsewhere = Raw(tmp_path / "spec")
    assert elsewhere.resolve("../run=7/a.csv")[0].columns == {"run": "7"}
    assert elsewhere.resolve(str(raw.root / "*.csv"))[0].columns == {"run": "7"}


def test_each_reader_has_the_columns(raw: Raw) -> None:
    for fold in ("a'b", "c"):
        written(raw, f"t/fold={fold}/p.parquet", {"x": [1, 2]})
    sources = [SourceSpec(uri="t/**/*.parquet")]
    files = raw.resolve("t/**/*.parquet")
    assert file_facts(files[0], sources, raw.root).schema.names == ["x", "fold"]
    seen = sniff_schema(files[0], sources, raw.root, Places(sources, raw.root))
    assert (seen.names, list(seen.types)) == (["x", "fold"], ["x"])
    with parquet_in_place(files, sources, raw.root) as opened:
        assert opened.constants == {"fold": ("a'b", "c")}
    unlike = [files[0], files[1].model_copy(update={"columns": {}})]
    with parquet_in_place(unlike, sources, raw.root) as opened:
        assert opened is None


def test_a_file_of_no_columns_but_its_folders_has_its_rows(raw: Raw) -> None:
    written(raw, "t/k=1/a.parquet", {"k": [1, 1, 1]})
    raw.write("u/k=2/a.csv", "k\n2\n2\n")
    assert raw.read("t/**/*.parquet", "u/**/*.csv").column("k").to_pylist() == [1, 1, 1, 2, 2]
