"""JSON Lines: what is wrong with a line is named with its number; values have the types that they have in CSV."""

from __future__ import annotations

import json
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import UsageError
from infra.sources import tables
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw

GOOD = b'{"a": "s3cr3t", "b": 1}\n\n'
# What stands in the third line, which is row 1, and how the sentence begins.
LINES: dict[str, tuple[bytes, str]] = {
    "a key twice": (b'{"a": "x", "b": 1, "b": 2}', "line 3 has the key b twice"),
    "a key twice, within": (b'{"c": [{"d": 1, "d": 2}]}', r"line 3 has the key c/\[\]/d twice"),
    "half of a pair": (b'{"a": "s3cr3t\\ud83d"}', r"line 3 has half of a character .* in the column a"),
    "half of a pair in a key": (b'{"a\\udc00": 1}', r"line 3 has half of a character .* in a key"),
    "beyond float64": (b'{"b": 1e400}', "line 3 has a number in the column b that is too large for float64"),
    "5,000 digits": (b'{"b": 1' + b"0" * 5000 + b"}", "double cannot hold the value in row 1 of the column b"),
    "digits and a point": (b'{"b": 1' + b"0" * 400 + b".5}", "double cannot hold the value in row 1 of the column b"),
    "a byte order mark": (b'\xef\xbb\xbf{"b": 1}', "line 3 begins with a byte order mark"),
    "an array": (b'["s3cr3t"]', "line 3 is an array, not a JSON object"),
    "an array over lines": (b"[\n{}]", "line 3 is an array, not a JSON object"),
    "a number": (b"17", "line 3 is a number, not a JSON object"),
    "a text": (b'"s3cr3t"', "line 3 is a text, not a JSON object"),
    "a truth": (b"true", "line 3 is true or false, not a JSON object"),
    "cut off in a text": (b'{"a": "s3cr3t', "line 3 ends before its object does.*the file was cut off"),
    "cut off in a number": (b'{"b": 1', "line 3 ends before its object does"),
    "other bytes": (b'{"a": "\xff"}', "line 3 is not UTF-8 at byte 8 of the line"),
    "UTF-16": ('{"b": 1}'.encode("utf-16"), "line 3 is not UTF-8 at byte 1 of the line"),
    "a control character": (b'{"a": "s3cr3t\x01"}', r"line 3 is not JSON .* 14 \(invalid control character\)"),
    "a tab": (b'{"a": "\t"}', r"line 3 is not JSON at character 8 \(invalid control character\)"),
    "something after it": (b'{"b": 1} s3cr3t', r"line 3 is not JSON at character 10 \(extra data\)"),
    "single quotes": (b"{'b': 1}", r"line 3 is not JSON at character 2 \(expecting property name"),
    "leading zeros": (b'{"b": 007}', r"line 3 is not JSON at character 8 \(expecting ',' delimiter\)"),
    "hexadecimal": (b'{"b": 0x10}', r"line 3 is not JSON at character 8 \(expecting ',' delimiter\)"),
    "a plus": (b'{"b": +5}', r"line 3 is not JSON at character 7 \(expecting value\)"),
    "Python's truth": (b'{"b": True}', r"line 3 is not JSON at character 7 \(expecting value\)"),
    "zero bytes": (b"\x00\x00", r"line 3 is not JSON at character 1 \(expecting value\)"),
}  # fmt: skip


@pytest.mark.parametrize("block", [1 << 23, 32])
@pytest.mark.parametrize("case", LINES)
def test_what_is_wrong_with_a_line_is_named(case: str, block: int, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BLOCK", block)  # with small blocks, the line is the first of its block
    line, sentence = LINES[case]
    for rest in (b"", b'\n{"b": 3}\n'):
        raw.write("a.jsonl", GOOD + line + rest)
        with pytest.raises(UsageError, match=rf"a\.jsonl: {sentence}") as error:
            raw.read("a.jsonl")
        assert "s3cr3t" not in str(error.value)


def test_a_mark_at_the_beginning_null_and_nan_are_no_faults(raw: Raw) -> None:
    raw.write("a.jsonl", b'\xef\xbb\xbf{"a": 1}\r\nnull\r\n \r\n{"a": NaN}\n{"a": -Infinity}')
    values = raw.read("a.jsonl").column("a").to_pylist()
    assert [repr(value) for value in values] == ["1.0", "None", "nan", "-inf"]


BIG = 2**63
# Values, their type in JSON Lines (or where they are refused), and their type in CSV.
TYPES: dict[str, tuple[list[Any], str, str]] = {
    "beyond int64": ([BIG, 1, None, 2**64 - 1], "uint64", "uint64"),
    "beyond int64, later": ([1, None, BIG], "uint64", "uint64"),
    "signed and beyond": ([-1, BIG + 1], "row 1 of the column v", "string"),
    "beyond, then signed": ([BIG + 1, -1], "row 0 of the column v", "string"),
    "beyond, but exact, then signed": ([-1, BIG], "double", "string"),
    "below int64": ([-BIG - 1, 1], "row 0 of the column v", "string"),
    "beyond uint64": ([1, 2**64 + 1], "row 1 of the column v", "string"),
    "large among fractions": ([0.5, 2**53 + 1], "row 1 of the column v", "string"),
    "large before fractions": ([2**53 + 1, 0.5], "row 0 of the column v", "string"),
    "large beside NaN": ([2**53 + 1, float("nan")], "row 0 of the column v", "int64"),  # NaN is missing in CSV
    "exact among fractions": ([0.5, 2**53, 1e300], "double", "string"),
    "whole": ([1, -2, 0], "int64", "int64"),
    "an exponent": ([1, 1e22], "double", "double"),
    "days": (["2024-02-29", None, "9999-12-31"], "date32[day]", "date32[day]"),
    "no such day": (["2024-02-29", "2023-02-29"], "string", "string"),
    "seconds": (["2024-02-29T10:00:00", "0001-01-01 00:00"], "timestamp[s]", "timestamp[s]"),
    "days and times": (["2024-02-29", "2024-02-29T10:00:00.5"], "timestamp[us]", "timestamp[us]"),
    "nanoseconds": (["2024-02-29T10:00:00.123456789", "2024-02-29"], "timestamp[ns]", "timestamp[ns]"),
    "nanoseconds and 9999": (["2024-02-29T10:00:00.123456789", "9999-12-31"], "string", "string"),
    "zoned": (["2024-02-29T10:00:00.5Z", "2024-02-29 10:00+02:00"], "timestamp[us, tz=UTC]", "timestamp[us, tz=UTC]"),
    "zoned and not": (["2024-02-29T10:00:00Z", "2024-02-29T10:00:00"], "string", "string"),
    "zoned and a day": (["2024-02-29T10:00:00Z", "2024-02-29"], "string", "string"),
    "a time and a word": (["2024-02-29", "soon"], "string", "string"),
    "a number in quotes": (["1", "2"], "string", "int64"),  # quoted, it is a text in JSON
    "truth": ([True, False, None], "bool", "bool"),
}  # fmt: skip


@pytest.mark.parametrize("block", [1 << 23, 64])
@pytest.mark.parametrize("case", TYPES)
def test_types_are_those_of_csv(case: str, block: int, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BLOCK", block)
    values, kind, in_csv = TYPES[case]
    texts = ["" if value is None else value if isinstance(value, str) else json.dumps(value) for value in values]
    pad = "x" * 30
    write_files(
        raw.root,
        {
            "a.csv": "n,v\n" + "".join(f"{pad},{text}\n" for text in texts),
            "a.jsonl": "".join(json.dumps({"n": pad, "v": value}) + "\n" for value in values),
        },
    )
    assert str(raw.read("a.csv").column("v").type) == in_csv
    if kind.startswith("row"):
        with pytest.raises(UsageError, match=f"a.jsonl: .* cannot hold the value in {kind}"):
            raw.read("a.jsonl")
        return
    column = raw.read("a.jsonl").column("v")
    assert str(column.type) == kind
    if kind in ("uint64", "int64", "double", "bool", "string"):
        assert column.to_pylist() == values
    if kind == in_csv:
        assert raw.read("a.csv").column("v").to_pylist() == column.to_pylist()


def test_the_ids_of_a_nested_list_are_exact_or_refused(raw: Raw) -> None:
    raw.write("a.jsonl", b'{"v": {"ids": [0.5, 3]}}\n{"v": {"ids": [9007199254740993]}}')
    with pytest.raises(UsageError, match=r"double cannot hold the value in row 1 of the column v/ids/\[\]"):
        raw.read("a.jsonl")
    raw.write("a.jsonl", b'{"v": {"ids": [9223372036854775809]}}')
    with pytest.raises(UsageError, match=r"double cannot hold the value in row 0 of the column v/ids/\[\]"):
        raw.read("a.jsonl")


@pytest.mark.parametrize("wide", ["a.csv", "a.jsonl", "a.parquet"])
def test_a_number_that_another_file_would_round_is_refused(wide: str, raw: Raw) -> None:
    write_files(raw.root, {"a.csv": "v\n1\n9007199254740993\n", "a.jsonl": '{"v": 1}\n\n{"v": 9007199254740993}\n'})
    pq.write_table(pa.table({"v": [1, 2**53 + 1]}), raw.write("a.parquet", b""))
    raw.write("b.csv", "v\n0.5\n")
    with pytest.raises(UsageError, match=rf"{wide}: double cannot hold the value in row 1 of the column v, .*one type"):
        raw.read(wide, "b.csv")


def test_a_number_beyond_float64_in_a_csv_file_is_a_text(raw: Raw) -> None:
    raw.write("a.csv", "v\n0.5\n1e400\n")
    assert raw.read("a.csv").column("v").to_pylist() == ["0.5", "1e400"]


@pytest.mark.parametrize("orient", ["columns", "index", "split", "table"])
def test_a_table_in_one_object_is_refused_and_not_read_as_one_row(orient: Literal["columns"], raw: Raw) -> None:
    pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}).to_json(raw.root / "table.json", orient=orient)
    with pytest.raises(UsageError, match=r"table.json has a whole table in one object.*\n?.*lines=True"):
        raw.read("table.json")
    (raw.root / "row.json").write_text('{"a": {"0": 1, "name": 2}, "b": {}}')
    assert raw.read("row.json").num_rows == 1
