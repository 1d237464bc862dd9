"""Rows as they are read: values that survive, one schema, what changed since, and one sentence for what is wrong."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from data_contracts.errors import CorruptError, UsageError
from infra.sources import Window, documents, places, tables
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw, parquet, zstd

# One column each: its CSV texts, its type, its values.
COLUMNS: dict[str, tuple[list[str], str, list[Any]]] = {
    "whole": (["1", "-2", "007"], "int64", [1, -2, 7]),
    "with a plus": (["+1", "-0", "+9007199254740993"], "int64", [1, 0, 2**53 + 1]),
    "with a plus and a minus": (["+-1", "2"], "string", ["+-1", "2"]),
    "whole with gaps": (["1", "", "NA"], "int64", [1, None, None]),
    "large": (["9007199254740993", "", "-9223372036854775808"], "int64", [9007199254740993, None, -(2**63)]),
    "beyond int64": (["18446744073709551615", "1", ""], "uint64", [2**64 - 1, 1, None]),
    "signed and beyond": (["-1", "18446744073709551615", "2"], "string", ["-1", "18446744073709551615", "2"]),
    "beyond uint64": (["99999999999999999999", "1", "2"], "string", ["99999999999999999999", "1", "2"]),
    "large among fractions": (["9007199254740993", "0.5", "1"], "string", ["9007199254740993", "0.5", "1"]),
    "real": (["0.5", "1e3", "3"], "double", [0.5, 1000.0, 3.0]),
    "real with gaps": (["nan", " 0.5 ", '""'], "double", [None, 0.5, None]),
    "infinite": (["inf", "-inf", "1"], "double", [float("inf"), float("-inf"), 1.0]),
    "logical": (["true", "False", ""], "bool", [True, False, None]),
    "ones and truths": (["1", "true", "0"], "string", ["1", "true", "0"]),
    "text": (["a", '"b, c"', '"say ""hi"""'], "string", ["a", "b, c", 'say "hi"']),
    "empty and missing": (['""', "", "x"], "string", ["", None, "x"]),
    "NA in quotes": (['"NA"', "NA", "None"], "string", ["NA", None, None]),
    "only empty": (['""', "", '""'], "string", ["", None, ""]),
    "none": (["", "NULL", "n/a"], "null", [None, None, None]),
    "day": (["2024-02-29", "9999-12-31", ""], "date32[day]", [date(2024, 2, 29), date(9999, 12, 31), None]),
    "no such day": (["2024-02-29", "2023-02-29", ""], "string", ["2024-02-29", "2023-02-29", None]),
    "time": (["2024-01-01 10:00", "2024-01-01T10:00:01", ""], "timestamp[s]",
             [datetime(2024, 1, 1, 10), datetime(2024, 1, 1, 10, 0, 1), None]),
    "time beside a day": (["2024-01-01", "2024-01-01T10:00:00.5", ""], "timestamp[us]",
                          [datetime(2024, 1, 1), datetime(2024, 1, 1, 10, 0, 0, 500000), None]),
    "zoned": (["2024-01-01T10:00:00+02:00", "2024-01-01 10:00:00Z", ""], "timestamp[us, tz=UTC]",
              [datetime(2024, 1, 1, 8, tzinfo=UTC), datetime(2024, 1, 1, 10, tzinfo=UTC), None]),
    "hexadecimal": (["0x10", "0x11", ""], "string", ["0x10", "0x11", None]),
    "a line in a value": (['"a\nb"', "c", ""], "string", ["a\nb", "c", None]),
    "words": (["1", "2", "n/k"], "string", ["1", "2", "n/k"]),
    "other letters": (["ü", "日本", "🙂"], "string", ["ü", "日本", "🙂"]),
}  # fmt: skip


@pytest.mark.parametrize("block", [1 << 23, 64])
def test_csv_values_survive(block: int, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    # With small blocks the type is found only over several: each text has a block of its own.
    pad = "x" * 40 if block == 64 else ""
    monkeypatch.setattr(tables, "_BLOCK", block)
    for name, (texts, kind, values) in COLUMNS.items():
        raw.write("a.csv", "n,v\n" + "".join(f"{pad}{i},{text}\n" for i, text in enumerate(texts)))
        column = raw.read("a.csv").column("v")
        assert (str(column.type), column.to_pylist()) == (kind, values), name


@pytest.mark.parametrize(
    ("ending", "compress"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_format_and_compression(kind: str, ending: str, compress: Callable[[bytes], bytes], raw: Raw) -> None:
    rows = [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
    data = {
        "csv": b"a,b\n1,x\n,y\n",
        "jsonl": "\n".join(map(json.dumps, rows)).encode(),
        "parquet": parquet(pa.Table.from_pylist(rows)),
    }[kind]
    raw.write(f"f.{kind}{ending}", compress(data))
    assert raw.read(f"f.{kind}{ending}").to_pylist() == rows
    assert raw.read(f"f.{kind}{ending}", columns=["b"]).to_pylist() == [{"b": "x"}, {"b": "y"}]
    assert sum(batch.num_rows for batch in raw.batches(f"f.{kind}{ending}", columns=[])) == 2


def test_bytes_behind_a_compressed_stream_are_part_of_the_file(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_CHUNK", 16)
    raw.write("a.csv.bz2", bz2.compress(b"a\n1\n") + b"behind" * 100)
    assert raw.read("a.csv.bz2").to_pydict() == {"a": [1]}


def test_batches_are_small_and_in_order_whatever_the_file(raw: Raw) -> None:
    write_files(
        raw.root,
        {
            "a.csv": "a\n" + "\n".join(map(str, range(10))),
            "b.jsonl": "\n".join(f'{{"a": {i}}}' for i in range(10, 17)),
            "c.parquet": parquet({"a": list(range(17, 30))}, row_group_size=5),
        },
    )
    batches = list(raw.batches("a.csv", "b.jsonl", "c.parquet", batch_rows=4))
    assert [value for batch in batches for value in batch.column("a").to_pylist()] == list(range(30))
    assert max(batch.num_rows for batch in batches) == 4
    assert all(batch.num_rows for batch in batches)


def test_a_long_text_that_a_file_names_in_many_rows_is_decoded_in_parts(raw: Raw) -> None:
    long = pa.DictionaryArray.from_arrays(pa.array([0, None, *[0] * 2_198], pa.int32()), pa.array(["x" * 1_000_000]))
    assert raw.write("a.parquet", parquet({"at": range(2_200), "text": long})).stat().st_size < 2_000_000
    rows: list[int] = []
    for batch in raw.batches("a.parquet", batch_rows=65_536):
        rows += batch.column("at").to_pylist()
        assert batch.nbytes < 70_000_000
        assert set(pc.binary_length(batch.column("text")).to_pylist()) <= {1_000_000, None}
    assert rows == list(range(2_200))


def test_all_files_have_one_schema(raw: Raw) -> None:
    write_files(
        raw.root,
        {
            "1.csv": "a,b,n\n1,2024-01-01,\n",
            "2.csv": "b,a,c\n2024-01-02 10:00:00,0.5,x\n",
            "3.parquet": parquet({"n": pa.array([7], pa.int8()), "c": pa.array(["y"]).dictionary_encode()}),
        },
    )
    table = raw.read("1.csv", "2.csv", "3.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        "a": "double", "b": "timestamp[s]", "n": "int8", "c": "string",
    }  # fmt: skip
    assert table.to_pylist() == [
        {"a": 1.0, "b": datetime(2024, 1, 1), "n": None, "c": None},
        {"a": 0.5, "b": datetime(2024, 1, 2, 10), "n": None, "c": "x"},
        {"a": None, "b": None, "n": 7, "c": "y"},
    ]


LONG = b"a,b\n" + os.urandom(50_000).hex().encode()
BAD: dict[str, tuple[dict[str, bytes], str]] = {
    "a line too long": ({"a.csv": b"a,b\n1,2\ns3cr3t,2,3\n"}, r"a.csv: row 3 of the file has 3 values, .* 2 columns"),
    "not UTF-8": ({"a.csv": b"a,b\n1,\xff\n"}, r"a.csv is not UTF-8"),
    "a name without an end": ({"a.csv": b'a,"' + b"b" * 200_000 + b"\n1,2\n"}, r"a.csv: a name .* is longer"),
    "header not UTF-8": ({"a.csv": "ä,b\n1,2\n".encode("latin-1")}, r"a.csv is not a CSV file in UTF-8"),
    "a name twice": ({"a.csv": b"a,b,a\n1,2,3\n"}, r"a.csv has the column a twice"),
    "no gzip": ({"a.csv.gz": b"a,b\n1,2\n"}, r"a.csv.gz is not a whole .gz file"),
    "half a gzip": ({"a.csv.gz": gzip.compress(LONG)[:20000]}, r"not a whole .gz file"),
    "half a xz": ({"a.csv.xz": lzma.compress(LONG)[:20000]}, r"not a whole .xz file"),
    "nothing compressed": ({"a.csv.gz": gzip.compress(b"")}, r"a.csv.gz is empty"),
    "a JSON array": ({"a.json": b'[{"a": "s3cr3t"}]'}, r"a.json: line 1 is an array, not a JSON object"),
    "broken JSON": ({"a.jsonl": b'{"a": 1}\n{"a": "s3cr3t\n'}, r"a.jsonl: line 2 ends before its object does"),
    "two kinds in JSON": (
        {"a.jsonl": b'{"a": 1}\n{"a": "s3cr3t"}\n'}, r"the column a changes from number to string in row 1"
    ),
    "no Parquet": ({"a.parquet": b"PAR1 s3cr3t"}, r"a.parquet is not a Parquet file"),
    "types of two CSV files": (
        {"a.csv": b"v,w\n1,x\n", "b.csv": b"v,w\n1,x\ns3cr3t,x\n"},
        r"b.csv: the column v is string \(row 1 holds text\), but in .*a.csv it is int64. Give it",
    ),
    "types of two formats": (
        {"a.csv": b"v\ntrue\n", "b.parquet": parquet({"v": [1]})}, r"b.parquet: the column v is int64, .*it is bool"
    ),
    "a name twice in Parquet": ({"a.parquet": parquet(pa.table([[1], [2]], ["a", "a"]))}, r"has the column a twice"),
    "structs that differ": (
        {"a.jsonl": b'{"a": {"b": 1}}', "b.jsonl": b'{"a": {"b": "s3cr3t"}}'}, r"b.jsonl: the column a is struct<b: str"
    ),
    "half of Parquet": (
        {"a.parquet": parquet({"a": list(range(1000))})[4:].replace(b"\x15", b"\x16", 3)}, r"a.parquet .*Parquet"
    ),
    "a row without an end": ({"a.csv": b'a,b\n"' + b"s3cr3t" * 9}, r"begins in line 2 .* has no closing quote"),
    "a number that does not fit": (
        {"a.csv": b"v\n-1\n", "b.csv": b"v\n18446744073709551615\n"}, r"a.csv: uint64 cannot hold the value in row 0"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence_without_its_values(case: str, raw: Raw) -> None:
    files, sentence = BAD[case]
    write_files(raw.root, files)
    with pytest.raises(UsageError, match=sentence) as error:
        raw.read(*files)
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "block", "sentence"),
    [
        ("a,b\n1,2\n" + "s3cr3t" * 20 + ",2\n", 32, r"a.csv cannot be read as CSV. Check its quotes"),
        ('{"a": 1}\n{"a": 2}\n{"a": true}\n', 12, r"the column a is int64 at first and bool from about row 2\."),
    ],
)
def test_what_spans_blocks_is_refused(
    text: str, block: int, sentence: str, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_BLOCK", block)
    name = "a.jsonl" if text.startswith("{") else "a.csv"
    raw.write(name, text)
    with pytest.raises(UsageError, match=sentence) as error:
        raw.read(name)
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "start"),
    [({"columns": ["a", "nope"]}, "The"), ({"window_column": "nope"}, "data.window.column: the")],
)
def test_a_column_that_is_not_there_is_refused(options: dict[str, Any], start: str, raw: Raw) -> None:
    raw.write("a.csv", "a,b\n1,2\n")
    with pytest.raises(UsageError, match=rf"^{start} data has no column nope; it has a, b"):
        raw.read("a.csv", window=Window(datetime(2024, 1, 1), datetime(2025, 1, 1)), **options)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "other bytes": lambda data: data[::-1],
    "one bit": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "longer": lambda data: data + b"\n",
}
CHANGED = {
    "a.csv": b"a\n1\n2\n3\n", "a.csv.gz": gzip.compress(b"a\n1\n"), "a.csv.zst": zstd(b"a\n1\n"),
    "a.jsonl": b'{"a": 1}\n', "a.parquet": parquet({"a": [1]}), "a.parquet.gz": gzip.compress(parquet({"a": [1]})),
    "a.bin": b"bytes",
}  # fmt: skip


@pytest.mark.parametrize("change", [*CHANGES, "gone"])
@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("known", [False, True], ids=["", "schema known"])
def test_a_file_that_changed_since_is_corrupt_and_one_that_is_gone_is_named(
    name: str, change: str, known: bool, raw: Raw
) -> None:
    path = raw.write(name, CHANGED[name])
    source = {"uri": name, "format": "files"} if name == "a.bin" else name
    files = raw.resolve(source)
    if known:
        raw.read(source, files=files)
    if change == "gone":
        path.unlink()
        with pytest.raises(UsageError, match=f"{name} is no longer there, though it was when the run was resolved"):
            raw.read(source, files=files)
        return
    path.write_bytes(CHANGES[change](path.read_bytes()))
    with pytest.raises(CorruptError, match=f"{name} changed after this run resolved it"):
        raw.read(source, files=files)


def test_a_parquet_file_that_changes_while_it_is_read_is_corrupt(raw: Raw) -> None:
    path = raw.write("a.parquet", parquet({"a": list(range(100))}))
    batches = raw.batches("a.parquet", batch_rows=10)
    next(batches)
    with path.open("r+b") as file:
        file.write(b"PAR1")
    os.utime(path, ns=(0, 0))
    with pytest.raises(CorruptError, match="changed after this run resolved it"):
        list(batches)


FILES = {"uri": "i/**/*.png", "format": "files", "pattern": "{label}/{name}.png"}


def test_files_are_rows_whose_bytes_are_loaded_only_when_asked_for(raw: Raw) -> None:
    write_files(raw.root, {f"i/{name}": name for name in ("cats/1.png", "dogs/2.png")})
    files = raw.resolve(FILES)
    assert raw.read(FILES, files=files).to_pylist() == [
        {"path": "cats/1.png", "label": "cats", "name": "1", "bytes": b"cats/1.png"},
        {"path": "dogs/2.png", "label": "dogs", "name": "2", "bytes": b"dogs/2.png"},
    ]
    (raw.root / "i/cats/1.png").unlink()
    labels = raw.read(FILES, files=files, columns=["label", "path"]).to_pylist()
    assert labels == [{"label": "cats", "path": "cats/1.png"}, {"label": "dogs", "path": "dogs/2.png"}]
    assert sum(batch.num_rows for batch in raw.batches(FILES, files=files, columns=[])) == 2


def test_files_in_a_batch_are_bounded_by_rows_and_by_bytes(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_FILES_BYTES", 25)
    write_files(raw.root, {f"i/c/{i}.png": b"0123456789" for i in range(5)})
    raw.write("i/c/9.png", b"x" * 100)
    assert [batch.num_rows for batch in raw.batches(FILES)] == [2, 2, 1, 1]
    assert [batch.num_rows for batch in raw.batches(FILES, columns=["path"], batch_rows=4)] == [4, 2]


def test_a_file_larger_than_a_row_is_refused(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_LARGEST", 3)
    raw.write("i/c/1.png", b"long")
    with pytest.raises(UsageError, match=r"1.png is larger than 2 GiB, the most that one row can hold"):
        raw.read(FILES)


WINDOW = Window(datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 4, tzinfo=UTC))


@pytest.mark.parametrize(
    "times",
    [
        pa.array([f"2024-01-0{i}" for i in range(1, 6)]).cast(pa.date32()),
        pa.array([f"2024-01-0{i}T00:00:00" for i in range(1, 6)]).cast(pa.timestamp("s")),
        pa.array([f"2024-01-0{i}T02:00:00+02:00" for i in range(1, 6)]).cast(pa.timestamp("us", "Asia/Tokyo")),
    ],
    ids=str,
)
def test_a_window_is_half_open(times: pa.Array, raw: Raw) -> None:
    raw.write("a.parquet", parquet({"n": [1, 2, 3, 4, 5, 6], "t": pa.chunked_array([times, pa.nulls(1, times.type)])}))
    options: dict[str, Any] = {"window": WINDOW, "window_column": "t"}
    assert raw.read("a.parquet", **options).column("n").to_pylist() == [2, 3]
    assert raw.read("a.parquet", columns=["n"], **options).to_pylist() == [{"n": 2}, {"n": 3}]
    assert sum(batch.num_rows for batch in raw.batches("a.parquet", columns=[], **options)) == 2


def test_a_window_of_no_times_and_a_nanosecond_before_its_end(raw: Raw) -> None:
    raw.write("a.csv", "t,n\n,1\n")
    assert list(raw.batches("a.csv", window=WINDOW, window_column="t")) == []
    with pytest.raises(UsageError, match=r"data.window.column: n is int64, not a date or a time"):
        raw.read("a.csv", window=WINDOW, window_column="n")
    end = int(WINDOW.end.timestamp()) * 10**9
    raw.write("a.parquet", parquet({"t": pa.array([end - 1, end], pa.timestamp("ns", "UTC"))}))
    assert raw.read("a.parquet", window=WINDOW, window_column="t").num_rows == 1
