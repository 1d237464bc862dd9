"""A corpus of small files with the odd corners of each format, each with the values that a person means by it.

`python -m tests.corpus.make FOLDER` writes it. Each case is a folder of its own; its table has the columns of the tiny
pipeline (id, a, b, c, label), so that a model can be trained on it, and odd ones, whose values repeat from row to row.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import itertools
import json
import lzma
import random
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

ROWS = 96
NAN, INF = float("nan"), float("inf")
_draw = random.Random(3)
_abc = [[round(_draw.uniform(-1, 1), 4) for _ in range(3)] for _ in range(ROWS)]
BASE: dict[str, list[Any]] = {
    "id": list(range(ROWS)),
    **{name: [row[at] for row in _abc] for at, name in enumerate("abc")},
    "label": [int(a + b > c) for a, b, c in _abc],
}
Files = dict[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Some files, and what they mean.

    Attributes:
        files: contents by path.
        means: each odd column with its values, which repeat; None where nothing can be meant but an error.
        source: the spec's `data.source`; default: the only file.
        rows: how many rows are meant.
        csv: the spec's `data.csv`.
        tabular: whether the case has the columns that the tiny pipeline trains on.
    """

    files: Files
    means: dict[str, list[Any]] | None = field(default_factory=dict)
    source: Any = None
    rows: int = ROWS
    tabular: bool = True
    csv: dict[str, Any] = field(default_factory=dict)

    def said(self, **settings: Any) -> Case:
        """The case with settings of `data.csv`."""
        return replace(self, csv=settings)


def cycled(values: Sequence[Any], rows: int = ROWS) -> list[Any]:
    """The values again and again, one for each row."""
    return [values[row % len(values)] for row in range(rows)]


# ---- CSV


def lines(odd: dict[str, list[str]], number: Callable[[float], str] = repr, rows: Iterable[int] = range(ROWS)) -> Any:
    """Header and rows as lists of texts; the odd columns are as they stand in the file."""
    yield [*BASE, *odd]
    for row in rows:
        a_b_c = [number(BASE[name][row]) for name in "abc"]
        yield [str(row), *a_b_c, str(BASE["label"][row]), *(texts[row % len(texts)] for texts in odd.values())]


def csv_text(odd: dict[str, list[str]], sep: str = ",", end: str = "\n", **options: Any) -> str:
    return "".join(sep.join(line) + end for line in lines(odd, **options))


def one(name: str, content: bytes | str, means: dict[str, list[Any]] | None, **options: Any) -> Case:
    """A case of one file."""
    return Case(files={name: content.encode() if isinstance(content, str) else content}, means=means, **options)


def csv(means: dict[str, list[Any]] | None, texts: dict[str, list[str]] | None = None, **options: Any) -> Case:
    """A case of one CSV file; its odd texts are the values themselves unless they are given."""
    told = {name: options.pop(name) for name in ("tabular", "rows") if name in options}
    change: Callable[[str], str | bytes] = options.pop("change", str)
    assert texts is not None or means is not None
    odd = texts if texts is not None else {name: [str(one) for one in values] for name, values in (means or {}).items()}
    return one(options.pop("name", "rows.csv"), change(csv_text(odd, **options)), means, **told)


def comma(number: float) -> str:
    return repr(number).replace(".", ",")


def after(row: int, added: str) -> Callable[[str], str]:
    """Puts text behind the line of a row (-1: behind the header's) of a CSV file, before its line end."""

    def change(text: str) -> str:
        split = text.splitlines(keepends=True)
        split[row + 1] = split[row + 1].rstrip("\n") + added + "\n"
        return "".join(split)

    return change


X = ["red", "green", "blue"]
DAYS = [date(2024, 2, 29), date(1999, 12, 31), date(2024, 3, 1)]
MOMENTS = [datetime(2024, 2, 29, 23, 59, 59), datetime(1999, 12, 31), datetime(2024, 3, 1, 0, 0, 0, 125000)]
CSV = {
    "csv-plain": csv({"x": X}),
    "csv-semicolon": csv({"x": X}, sep=";"),
    "csv-tab": csv({"x": X}, sep="\t"),
    "csv-pipe": csv({"x": X}, sep="|"),
    "csv-sep-line": csv({"x": X}, sep=";", change=lambda text: "sep=;\n" + text),
    "csv-sep-line-comma": csv({"x": X}, change=lambda text: "sep=,\n" + text),
    "csv-decimal-comma": csv({"x": [12.5, -3.25]}, {"x": ["12,5", "-3,25"]}, sep=";", number=comma),
    "csv-thousands": csv({"x": [1234.5, 12.0]}, {"x": ['"1,234.50"', "12"]}),
    "csv-bom": csv({"x": X}, change=lambda text: text.encode("utf-8-sig")),
    "csv-utf-16": csv({"x": X}, change=lambda text: text.encode("utf-16")),
    "csv-cp1252": csv({"x": ["Zürich", "Bern"]}, change=lambda text: text.encode("cp1252")),
    "csv-cp1252-header": csv({"größe": [1, 2]}, change=lambda text: text.encode("cp1252")),
    "csv-cr": csv({"x": X}, end="\r"),
    "csv-crlf": csv({"x": X}, end="\r\n"),
    "csv-quotes": csv({"x": ['say "yes"', "a,b", "it's"]}, {"x": ['"say ""yes"""', '"a,b"', "it's"]}),
    "csv-backslash-quotes": csv(None, {"x": [r'"say \"yes\" now"', '"a"']}),
    "csv-newlines": csv({"x": ["two\nlines", "cr\r\nlf", "z"]}, {"x": ['"two\nlines"', '"cr\r\nlf"', "z"]}),
    "csv-short-row": csv(None, {"x": X}, change=lambda text: text.replace(",green\n", "\n", 1)),
    "csv-long-row": csv(None, {"x": X}, change=after(40, ",more")),
    "csv-long-rows": csv(None, {"x": [f"{one},more" for one in X]}),
    "csv-duplicate-header": csv(
        {"x": [1], "x.1": [2]}, {"x": ["1"], "x.1": ["2"]}, change=lambda text: text.replace("x.1", "x")
    ),
    "csv-empty-header": csv({"Unnamed: 5": [1, 2]}, {"": ["1", "2"]}),
    "csv-header-spaces": csv({" x ": [1, 2]}),
    "csv-long-name": csv({"n" * 300: [1, 2]}),
    "csv-case-twins": csv({"x": [1, 2], "X": ["u", "v"]}),
    "csv-dotted-name": csv({"x.y": [1, 2], 'q"z': ["u", "v"]}, {"x.y": ["1", "2"], '"q""z"': ["u", "v"]}),
    "csv-leading-zeros": csv({"x": ["007", "010", "100"]}),
    "csv-big-ints": csv({"x": [2**53 + 1, 2**63 - 1, -(2**63)]}),
    "csv-big-ints-gap": csv({"x": [2**53 + 1, None]}, {"x": [str(2**53 + 1), ""]}),
    "csv-uint64": csv({"x": [2**64 - 1, 1]}),
    "csv-huge-ints": csv({"x": [str(2**64), str(10**30)]}),
    "csv-floats": csv(
        {"x": [INF, -0.0, 5e-324, 0.1, 0.5, 5.0, 1e5]}, {"x": ["inf", "-0.0", "5e-324", "0.1", ".5", "5.", "1E5"]}
    ),
    "csv-float-overflow": csv({"x": ["1e400", "1"]}),
    "csv-float-digits": csv({"x": [0.12345678901234568, 1.7976931348623157e308, 2.5]}),
    "csv-hex": csv({"x": ["0x10", "1_000"]}),
    "csv-spaces": csv({"x": [1, 2, 3]}, {"x": [" 1", "2 ", "\t3"]}),
    "csv-text-spaces": csv({"x": [" a", "b "]}),
    "csv-quoted-numbers": csv({"x": [1, 2]}, {"x": ['"1"', '"2"']}),
    "csv-late-text": csv({"x": [*map(str, range(ROWS - 1)), "many"]}, {"x": [*map(str, range(ROWS - 1)), "many"]}),
    "csv-empty-quoted": csv({"x": ["", None, "z"]}, {"x": ['""', "", "z"]}),
    "csv-na-words": csv({"x": [None, None, None, None, 1, None]}, {"x": ["NA", "null", "N/A", "#N/A", "1", "nan"]}),
    "csv-na-word-in-text": csv({"x": ["NA", "DE", "None"]}, {"x": ['"NA"', "DE", '"None"']}),
    "csv-own-na-words": csv({"x": ["-", "1", "?"]}),
    "csv-booleans": csv({"x": [True, False, True, False]}, {"x": ["true", "false", "TRUE", "False"]}),
    "csv-booleans-gap": csv({"x": [True, None, False]}, {"x": ["True", "", "False"]}),
    "csv-yes-no": csv({"x": ["yes", "no"], "y": ["t", "f"]}),
    "csv-dates": csv({"day": DAYS, "at": MOMENTS}),
    "csv-iso-times": csv({"at": MOMENTS}, {"at": [one.isoformat() for one in MOMENTS]}),
    "csv-times-zone": csv(
        {"at": [datetime(2024, 3, 1, 10, tzinfo=UTC), datetime(2024, 3, 1, 8, tzinfo=UTC)]},
        {"at": ["2024-03-01T10:00:00Z", "2024-03-01T10:00:00+02:00"]},
    ),
    "csv-times-ns": csv(
        {"at": [pd.Timestamp("2024-03-01 10:00:00.123456789")]}, {"at": ["2024-03-01 10:00:00.123456789"]}
    ),
    "csv-far-dates": csv({"day": [date(9999, 12, 31), date(1, 1, 1), date(2024, 1, 1)]}),
    "csv-foreign-dates": csv({"x": ["01.02.2024", "13.02.2024"], "y": ["02/01/2024", "02/13/2024"]}),
    "csv-impossible-date": csv({"day": ["2024-02-30", "2024-02-29"]}),
    "csv-clock-times": csv({"x": ["10:30", "23:59:59"]}),
    "csv-trailing-commas": csv({"x": X, "Unnamed: 6": [None]}, {"x": X, "": [""]}),
    "csv-trailing-commas-below": csv(None, {"x": [f"{one}," for one in X]}),
    "csv-nul": csv({"x": ["a\0b", "c"]}),
    "csv-comments": csv(None, {"x": X}, change=lambda text: "# exported by a machine\n# 2024-03-01\n" + text),
    "csv-blank-lines": csv({"x": X}, change=lambda text: text.replace(",green\n", ",green\n\n")),
    "csv-blank-start": csv({"x": X}, change=lambda text: "\n\n" + text),
    "csv-no-final-newline": csv({"x": X}, change=str.rstrip),
    "csv-header-only": csv(
        {name: [] for name in BASE}, {}, rows=0, change=lambda text: text.splitlines()[0] + "\n", tabular=False
    ),
    "csv-one-column": one(
        "rows.csv", "id\n" + "".join(f"{n}\n" for n in range(ROWS)), {"id": BASE["id"]}, tabular=False
    ),
    "csv-one-column-gap": one(
        "rows.csv", "id\n" + "".join(f"{n}\n\n" for n in range(ROWS)), {"id": BASE["id"]}, tabular=False
    ),
    "csv-only-missing": csv({"x": [None]}, {"x": [""]}),
    "csv-unclosed-quote": csv(None, {"x": X}, change=lambda text: text.replace(",green\n", ',"green\n', 1)),
    "csv-line-separators": csv({"x": ["a\u2028b", "c\x0cd", "e\x85f"]}),
    "csv-zero-width": csv({"x": ["\u200b1", "\xa02"]}),
    "csv-mixed-ends": csv({"x": X}, change=lambda text: text.replace("green\n", "green\r\n")),
    "csv-quote-inside": csv({"x": ['5" pipe', "z"]}),
    "csv-space-before-quote": csv({"x": [' "a"', "z"]}),
    "csv-text-after-quote": csv(None, {"x": ['"a"b', "z"]}),
    "csv-two-open-quotes": csv(
        None, {"x": X}, change=lambda t: t.replace(",green\n", ',"green\n', 1).replace(",blue\n", ',"blue\n', 1)
    ),
    "csv-quoted-header": csv({"x\ny": [1, 2], "p,q": ["u", "v"]}, {'"x\ny"': ["1", "2"], '"p,q"': ["u", "v"]}),
    "csv-bom-quoted-header": csv({"x": X}, change=lambda text: text.replace("id,", '"id",', 1).encode("utf-8-sig")),
    "csv-date-and-time": csv(
        {"at": [datetime(2024, 2, 29), datetime(2024, 3, 1, 12)]}, {"at": ["2024-02-29", "2024-03-01 12:00:00"]}
    ),
    "csv-zone-and-naive": csv({"at": ["2024-02-29 12:00:00", "2024-03-01 12:00:00Z"]}),
    "csv-unpadded-dates": csv({"x": ["2024-1-5", "2024-10-12"]}),
    "csv-year-10000": csv({"x": ["10000-01-01", "2024-01-01"]}),
    "csv-compact-dates": csv({"x": [20240229, 20240301]}),
    "csv-plus-sign": csv({"x": [1, -2, 0]}, {"x": ["+1", "-2", "-0"]}),
    "csv-exponent-among-ints": csv({"x": [1000.0, 2.0]}, {"x": ["1e3", "2"]}),
    "csv-nan-among-ints": csv({"x": [1, None]}, {"x": ["1", "NaN"]}),
    "csv-big-int-among-floats": csv({"x": [str(2**53 + 1), "0.5"]}),
    "csv-spaces-only": csv({"x": [1, None]}, {"x": ["1", "  "]}),
    "csv-bool-and-01": csv({"x": ["true", "0", "1"]}),
    "csv-infinity-words": csv({"x": [INF, -INF, INF]}, {"x": ["Infinity", "-inf", "INF"]}),
    "csv-percent-money": csv({"x": ["5%", "10%"], "y": ["€5", "€7.5"]}),
}

CSV |= {
    "csv-semicolon-said": CSV["csv-semicolon"].said(separator=";"),
    "csv-tab-said": CSV["csv-tab"].said(separator="\t"),
    "csv-pipe-said": CSV["csv-pipe"].said(separator="|"),
    "csv-sep-line-said": CSV["csv-sep-line"].said(separator=";", skip_rows=1),
    "csv-sep-line-comma-said": CSV["csv-sep-line-comma"].said(skip_rows=1),
    "csv-decimal-comma-said": CSV["csv-decimal-comma"].said(separator=";", decimal=","),
    "csv-thousands-said": CSV["csv-thousands"].said(thousands=","),
    "csv-utf-16-said": CSV["csv-utf-16"].said(encoding="utf-16"),
    "csv-cp1252-said": CSV["csv-cp1252"].said(encoding="cp1252"),
    "csv-cp1252-header-said": CSV["csv-cp1252-header"].said(encoding="cp1252"),
    "csv-comments-said": replace(CSV["csv-comments"], means={"x": X}).said(comment="#"),
    "csv-no-quotes-said": csv({"x": ['"Oh', "z"]}).said(quote="none"),
}


# ---- JSON


def json_lines(odd: list[str], end: str = "\n", rows: int = ROWS) -> str:
    """JSON Lines; `odd` are members of the objects as they stand in the file, such as `"x": 1`."""
    texts = []
    for row in range(rows):
        members = json.dumps({name: values[row] for name, values in BASE.items()})[:-1]
        texts.append(", ".join(filter(None, [members, odd[row % len(odd)] if odd else ""])) + "}" + end)
    return "".join(texts)


def jsonl(means: dict[str, list[Any]] | None, odd: list[str] | None = None, **options: Any) -> Case:
    """A case of one JSON Lines file."""
    change: Callable[[str], str | bytes] = options.pop("change", str)
    if odd is None:
        names, values = list(means or {}), zip(*(means or {}).values(), strict=True)
        odd = [json.dumps(dict(zip(names, one, strict=True)))[1:-1] for one in values]
    end = options.pop("end", "\n")
    return one(options.pop("name", "rows.jsonl"), change(json_lines(odd, end)), means, **options)


def records(means: dict[str, list[Any]]) -> str:
    table = {**BASE, **{name: cycled(values) for name, values in means.items()}}
    return json.dumps([dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)])


JSON = {
    "jsonl-plain": jsonl({"x": X}),
    "jsonl-crlf": jsonl({"x": X}, end="\r\n"),
    "jsonl-blank-lines": jsonl({"x": X}, end="\n\n"),
    "jsonl-bom": jsonl({"x": X}, change=lambda text: text.encode("utf-8-sig")),
    "jsonl-utf-16": jsonl({"x": X}, change=lambda text: text.encode("utf-16")),
    "jsonl-no-final-newline": jsonl({"x": X}, change=str.rstrip),
    "jsonl-big-ints": jsonl({"x": [2**53 + 1, 2**63 - 1, -(2**63)]}),
    "jsonl-big-ints-gap": jsonl({"x": [2**53 + 1, None]}),
    "jsonl-uint64": jsonl({"x": [2**64 - 1, 2**63]}),
    "jsonl-huge-ints": jsonl(None, ['"x": 18446744073709551616', '"x": 1000000000000000000000000000001']),
    "jsonl-big-int-among-floats": jsonl(None, [f'"x": {2**53 + 1}', '"x": 0.5']),
    "jsonl-ints-and-floats": jsonl({"x": [1.0, 2.5, 3.0]}, ['"x": 1', '"x": 2.5', '"x": 3']),
    "jsonl-overflow": jsonl(None, ['"x": 1e400', '"x": 1']),
    "jsonl-nan": jsonl({"x": [NAN, INF, 1.0]}, ['"x": NaN', '"x": Infinity', '"x": 1.0']),
    "jsonl-minus-zero": jsonl({"x": [-0.0, 5e-324, 1.7976931348623157e308]}),
    "jsonl-duplicate-keys": jsonl(None, ['"x": 1, "x": 2']),
    "jsonl-case-twins": jsonl({"x": [1, 2], "X": ["u", "v"]}),
    "jsonl-lone-surrogate": jsonl(None, [r'"x": "\ud800"', '"x": "z"']),
    "jsonl-surrogate-pair": jsonl({"x": ["😀", "ü"]}),
    "jsonl-nul": jsonl({"x": ["a\0b", "c"]}),
    "jsonl-invalid-utf8": jsonl(None, ['"x": "ü"'], change=lambda text: text.encode("latin-1")),
    "jsonl-nested": jsonl({"x": [{"p": 1, "q": {"r": "s"}}, {"p": 2, "q": {"r": "t"}}]}),
    "jsonl-nested-missing": jsonl(
        {"x": [{"p": 1, "q": None}, {"p": None, "q": "s"}]}, ['"x": {"p": 1}', '"x": {"q": "s"}']
    ),
    "jsonl-arrays": jsonl({"x": [[1, 2], [], [3]]}),
    "jsonl-mixed": jsonl(None, ['"x": 1', '"x": "one"']),
    "jsonl-mixed-bool": jsonl(None, ['"x": 1', '"x": true']),
    "jsonl-missing-keys": jsonl({"x": [1, None], "y": [None, "v"]}, ['"x": 1', '"y": "v"']),
    "jsonl-null-column": jsonl({"x": [None]}),
    "jsonl-text-numbers": jsonl({"x": ["007", "1"], "y": ["NA", ""]}),
    "jsonl-booleans": jsonl({"x": [True, False, None]}),
    "jsonl-dates": jsonl(
        {"day": DAYS, "at": MOMENTS}, [f'"day": "{day}", "at": "{at}"' for day, at in zip(DAYS, MOMENTS, strict=True)]
    ),
    "jsonl-zone-times": jsonl(
        {"at": [datetime(2024, 3, 1, 10, tzinfo=UTC), datetime(2024, 3, 1, 8, tzinfo=UTC)]},
        ['"at": "2024-03-01T10:00:00Z"', '"at": "2024-03-01T10:00:00+02:00"'],
    ),
    "jsonl-late-time-text": jsonl({"at": ["2024-03-01 10:00:00", "soon", "2024-03-01 10:00:00"]}),
    "jsonl-named-like-times": jsonl({"date": [1709280000, 5], "created_at": [3, 4]}),
    "jsonl-date-and-time": jsonl(
        {"at": [datetime(2024, 2, 29), datetime(2024, 3, 1, 12)]}, ['"at": "2024-02-29"', '"at": "2024-03-01 12:00:00"']
    ),
    "jsonl-zone-and-naive": jsonl({"at": ["2024-02-29 12:00:00", "2024-03-01 12:00:00Z"]}),
    "jsonl-int-then-null-float": jsonl({"x": [1.0, None, 0.5]}, ['"x": 1', '"x": null', '"x": 0.5']),
    "jsonl-empty-objects": jsonl({"x": [{}]}),
    "jsonl-empty-key": jsonl({"": [1, 2]}),
    "jsonl-dotted-keys": jsonl({"x.y": [1, 2], "x": [{"y": 3}, {"y": 4}]}),
    "jsonl-list-of-objects": jsonl({"x": [[{"p": 1}], []]}),
    "jsonl-object-or-null": jsonl({"x": [{"p": 1}, None]}),
    "jsonl-object-or-text": jsonl(None, ['"x": {"p": 1}', '"x": "one"']),
    "jsonl-comment": jsonl(None, ['"x": 1'], change=lambda text: "// exported\n" + text),
    "jsonl-single-quotes": jsonl(None, ["\"x\": 'a'"]),
    "jsonl-leading-zeros": jsonl(None, ['"x": 007']),
    "jsonl-trailing-comma": jsonl(None, ['"x": 1,']),
    "jsonl-cut": jsonl(None, ['"x": 1'], change=lambda text: text[:-20]),
    "jsonl-rest-after-object": jsonl(None, ['"x": 1'], change=lambda text: text.replace("}\n", "} oops\n", 1)),
    "jsonl-two-on-a-line": jsonl({"x": [1]}, end=" ", change=lambda text: text + "\n"),
    "jsonl-scalars": one("rows.jsonl", "1\n2\n", None, tabular=False),
    "json-array": one("rows.json", records({"x": X}), {"x": X}),
    "json-array-lines": one("rows.json", records({"x": X}).replace("}, ", "},\n"), {"x": X}),
    "json-pretty": one("rows.json", json.dumps(json.loads(records({"x": X})), indent=2), {"x": X}),
    "json-lines": jsonl({"x": X}, name="rows.json"),
    "json-object-of-columns": one(
        "rows.json", json.dumps({name: dict(enumerate(values)) for name, values in BASE.items()}), {}
    ),
}


# ---- Parquet


def with_odd(odd: dict[str, Any], rows: int = ROWS) -> pa.Table:
    """The base table and odd columns, each an array or a list of values that repeat."""
    columns = {name: pa.array(values[:rows]) for name, values in BASE.items()}
    for name, values in odd.items():
        kind = values.type if isinstance(values, pa.Array) else None
        columns[name] = pa.array(cycled(values.to_pylist() if kind else values, rows), kind)
    return pa.table(columns)


def stored(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def parquet(means: dict[str, list[Any]] | None, odd: dict[str, Any] | None = None, **options: Any) -> Case:
    """A case of one Parquet file."""
    told = {name: options.pop(name) for name in ("tabular", "rows") if name in options}
    change: Callable[[bytes], bytes] = options.pop("change", bytes)
    table = with_odd((means or {}) if odd is None else odd, options.pop("stored_rows", ROWS))
    return one("rows.parquet", change(stored(table, **options)), means, **told)


def typed(kind: pa.DataType, values: list[Any], means: list[Any] | None = None, **options: Any) -> Case:
    """A case of one Parquet file with one odd column of a type."""
    return parquet({"x": values if means is None else means}, {"x": pa.array(values, kind)}, **options)


def encrypted() -> bytes:
    """A Parquet file whose footer and columns are encrypted."""

    class Wrapped(pe.KmsClient):
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return base64.b64encode(key_bytes)

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            return base64.b64decode(wrapped_key)

    settings = pe.EncryptionConfiguration(footer_key="footer", column_keys={"column": list(BASE)})
    factory = pe.CryptoFactory(lambda _: Wrapped())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), settings)
    return stored(with_odd({}), encryption_properties=properties)


def framed(index: pd.Index | None = None) -> bytes:
    """A Parquet file that pandas wrote, with the index of a frame."""
    frame = with_odd({"x": [1, 2]}).to_pandas()
    sink = io.BytesIO()
    (frame if index is None else frame.set_index(index)).to_parquet(sink)
    return sink.getvalue()


UTC_MOMENTS = [one.replace(tzinfo=UTC) for one in MOMENTS]

PARQUET = {
    "parquet-plain": parquet({"x": X}),
    "parquet-int96": parquet({"x": MOMENTS}, use_deprecated_int96_timestamps=True),
    "parquet-int96-far": parquet(
        {"x": [datetime(9999, 12, 31), datetime(1, 1, 1)]}, use_deprecated_int96_timestamps=True
    ),
    **{
        f"parquet-time-{unit}": typed(
            pa.timestamp(unit), [one.replace(microsecond=0 if unit == "s" else one.microsecond) for one in MOMENTS]
        )
        for unit in ("s", "ms", "us")
    },
    "parquet-time-ns": typed(
        pa.timestamp("ns"), [pd.Timestamp("2024-03-01 10:00:00.123456789"), pd.Timestamp("1999-12-31")]
    ),
    "parquet-time-zone": typed(pa.timestamp("us", "Europe/Berlin"), UTC_MOMENTS),
    "parquet-time-far": typed(pa.timestamp("us"), [datetime(9999, 12, 31), datetime(1, 1, 1), datetime(2024, 1, 1)]),
    "parquet-date32": typed(pa.date32(), [*DAYS, None]),
    "parquet-date64": typed(pa.date64(), DAYS),
    "parquet-clock-times": typed(pa.time64("us"), [time(10, 30), time(23, 59, 59, 5)]),
    "parquet-duration": typed(pa.duration("us"), [timedelta(seconds=90), timedelta(days=-1)]),
    "parquet-decimal128": typed(pa.decimal128(10, 2), [Decimal("12.50"), Decimal("-0.01"), None]),
    "parquet-decimal-int": parquet(
        {"x": [Decimal("12.50")]},
        {"x": pa.array([Decimal("12.50")], pa.decimal128(10, 2))},
        store_decimal_as_integer=True,
    ),
    "parquet-decimal256": typed(pa.decimal256(60, 3), [Decimal(f"1{'0' * 50}.125"), Decimal("1.500")]),
    "parquet-uint64": typed(pa.uint64(), [2**64 - 1, 1, None]),
    "parquet-int64-gap": typed(pa.int64(), [2**53 + 1, None]),
    "parquet-int8": typed(pa.int8(), [-128, 127]),
    "parquet-dictionary": parquet({"x": X}, {"x": pa.array(X).dictionary_encode()}),
    "parquet-dictionary-ints": parquet({"x": [7, 9]}, {"x": pa.array([7, 9]).dictionary_encode()}),
    "parquet-list": typed(pa.list_(pa.int32()), [[1, 2], [], None, [3, None]]),
    "parquet-fixed-list": typed(pa.list_(pa.float32(), 2), [[0.5, 1.5], [2.5, -0.0]]),
    "parquet-struct": typed(
        pa.struct({"p": pa.int64(), "q": pa.string()}), [{"p": 1, "q": "s"}, {"p": None, "q": "t"}]
    ),
    "parquet-map": typed(pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
    "parquet-null-column": typed(pa.null(), [None]),
    "parquet-hidden-index": one("rows.parquet", framed(pd.Index([*range(1, ROWS), 0])), {"x": [1, 2]}),
    "parquet-named-index": one(
        "rows.parquet",
        framed(pd.Index([f"k{n % 2}" for n in range(ROWS)], name="key")),
        {"x": [1, 2], "key": ["k0", "k1"]},
    ),
    "parquet-float16": typed(pa.float16(), [0.5, -0.0, None]),
    "parquet-float32": typed(pa.float32(), [0.5, 0.10000000149011612]),
    "parquet-large-string": typed(pa.large_string(), ["ä", "", None]),
    "parquet-string-view": typed(pa.string_view(), ["ä", "a text of more than twelve bytes"]),
    "parquet-binary": typed(pa.binary(), [b"\x00\xff", b"", None]),
    "parquet-fixed-binary": typed(pa.binary(2), [b"\x00\xff", b"ab"]),
    "parquet-bool-gap": typed(pa.bool_(), [True, None, False]),
    "parquet-nan-and-null": typed(pa.float64(), [NAN, None, 1.0]),
    "parquet-minus-zero": typed(pa.float64(), [-0.0, 0.0, INF]),
    "parquet-zero-rows": parquet(
        {name: [] for name in [*BASE, "x"]}, {"x": pa.array([1])}, stored_rows=0, rows=0, tabular=False
    ),
    "parquet-zero-columns": one("rows.parquet", stored(pa.table({})), {}, rows=0, tabular=False),
    "parquet-row-groups": typed(pa.float64(), [NAN, -0.0, 0.0, None], row_group_size=5),
    "parquet-no-statistics": parquet({"x": X}, write_statistics=False, row_group_size=7, compression="zstd"),
    "parquet-delta": parquet(
        {"x": X},
        use_dictionary=False,
        column_encoding={"x": "DELTA_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED"},
        data_page_version="2.0",
    ),
    "parquet-encrypted": one("rows.parquet", encrypted(), None),
    "parquet-truncated": parquet(None, {"x": X}, change=lambda data: data[: len(data) // 2]),
    "parquet-no-footer": parquet(None, {"x": X}, change=lambda data: data[:-30]),
    "parquet-flipped-page": parquet(
        None, {"x": X}, compression="snappy", change=lambda data: data[:40] + bytes(60) + data[100:]
    ),
    "parquet-case-twins": parquet({"x": [1, 2], "X": ["u", "v"]}),
    "parquet-dotted-name": parquet({"x.y": [1, 2], "q z": ["u", "v"], "": [3, 4]}),
    "parquet-duplicate-name": one(
        "rows.parquet", stored(pa.table([*with_odd({"x": [1], "y": [2]}).columns], [*BASE, "x", "x"])), None
    ),
    "parquet-is-csv": one("rows.parquet", csv_text({"x": X}), None),
}


# ---- compressed, folders, several files, images, texts

PLAIN = csv_text({"x": X})
HALF = len(PLAIN) // 2


def zipped(data: str | bytes) -> bytes:
    return gzip.compress(data.encode() if isinstance(data, str) else data, mtime=0)


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


COMPRESSED = {
    "gzip": one("rows.csv.gz", zipped(PLAIN), {"x": X}),
    "bzip2": one("rows.csv.bz2", bz2.compress(PLAIN.encode()), {"x": X}),
    "xz": one("rows.csv.xz", lzma.compress(PLAIN.encode()), {"x": X}),
    "zstd": one("rows.csv.zst", zstd(PLAIN.encode()), {"x": X}),
    "zstd-frames": one("rows.csv.zst", zstd(PLAIN[:HALF].encode()) + zstd(PLAIN[HALF:].encode()), {"x": X}),
    "bzip2-streams": one(
        "rows.csv.bz2", bz2.compress(PLAIN[:HALF].encode()) + bz2.compress(PLAIN[HALF:].encode()), {"x": X}
    ),
    "xz-streams": one(
        "rows.csv.xz", lzma.compress(PLAIN[:HALF].encode()) + lzma.compress(PLAIN[HALF:].encode()), {"x": X}
    ),
    "gzip-members": one("rows.csv.gz", zipped(PLAIN[:HALF]) + zipped(PLAIN[HALF:]), {"x": X}),
    "gzip-padded": one("rows.csv.gz", zipped(PLAIN) + bytes(512), {"x": X}),
    "gzip-trailing-rubbish": one("rows.csv.gz", zipped(PLAIN) + b"rubbish", None),
    "gzip-truncated": one("rows.csv.gz", zipped(PLAIN)[:-100], None),
    "gzip-truncated-trailer": one("rows.csv.gz", zipped(PLAIN)[:-4], None),
    "zstd-truncated": one("rows.csv.zst", zstd(PLAIN.encode())[:-100], None),
    "bzip2-truncated": one("rows.csv.bz2", bz2.compress(PLAIN.encode())[:-100], None),
    "xz-truncated": one("rows.csv.xz", lzma.compress(PLAIN.encode())[:-100], None),
    "gzip-flipped": one("rows.csv.gz", zipped(PLAIN)[:-8] + b"\0\0\0\0" + zipped(PLAIN)[-4:], None),
    "gzip-is-plain": one("rows.csv.gz", PLAIN, None),
    "gzip-jsonl": one("rows.jsonl.gz", zipped(json_lines(['"x": "red"'])), {"x": ["red"]}),
    "gzip-parquet": one("rows.parquet.gz", zipped(stored(with_odd({"x": X}))), {"x": X}),
    "upper-case-ending": one("ROWS.CSV.GZ", zipped(PLAIN), {"x": X}),
}


def halves(first: pa.Table, second: pa.Table, names: tuple[str, str] = ("1.parquet", "2.parquet")) -> Files:
    """Two Parquet files: the first half of one table, the second half of another."""
    return {names[0]: stored(first.slice(0, ROWS // 2)), names[1]: stored(second.slice(ROWS // 2))}


def two(first: pa.Array, second: pa.Array, means: list[Any] | None) -> Case:
    """A case of two Parquet files whose column `x` has two types; `means` are the values of all rows."""
    files = halves(with_odd({"x": first}), with_odd({"x": second}))
    return Case(files=files, source="*.parquet", means=None if means is None else {"x": means})


def by_half(first: Any, second: Any) -> list[Any]:
    return [first] * (ROWS // 2) + [second] * (ROWS // 2)


def named(folder: str) -> Case:
    return one(f"{folder}/rows.csv", PLAIN, {"x": X})


_red, _blue = with_odd({"x": ["red"]}), with_odd({"x": ["blue"]})
HIVE = halves(with_odd({}), with_odd({}), ("day=2024-01-01/part-0.parquet", "day=2024-01-02/part-0.parquet"))
FOLDERS = {
    "hive": Case(files=HIVE, source="data/**/*.parquet", means={"day": by_half(date(2024, 1, 1), date(2024, 1, 2))}),
    "hive-folder": Case(files=HIVE, source="data", means={"day": by_half(date(2024, 1, 1), date(2024, 1, 2))}),
    "spark-output": Case(
        files={
            **halves(_red, _red, ("part-0.parquet", "part-1.parquet")),
            "_SUCCESS": b"",
            ".part-0.parquet.crc": b"crc",
        },
        source="data/*",
        means={"x": ["red"]},
    ),
    "spark-output-parquet": Case(
        files={**halves(_red, _red, ("part-0.parquet", "part-1.parquet")), "_SUCCESS": b"", "._part-0.parquet": b"mac"},
        source="data/*.parquet",
        means={"x": ["red"]},
    ),
    "name-brackets": named("[raw]"),
    "name-umlaut-plus": named("Größe+1 #2"),
    "name-percent": named("50%20off"),
    "name-quotes": named('it\'s "here"; $HOME'),
    "name-star": named("a*b"),
    "name-newline": named("two\nlines"),
    "two-column-order": Case(
        files=halves(_red, _blue.select(["x", *reversed(list(BASE))])),
        source="*.parquet",
        means={"x": by_half("red", "blue")},
    ),
    "two-column-missing": Case(
        files=halves(with_odd({}), _blue), source="*.parquet", means={"x": by_half(None, "blue")}
    ),
    "two-int-float": two(pa.array([1]), pa.array([0.5]), by_half(1.0, 0.5)),
    "two-big-int-float": two(pa.array([2**53 + 1]), pa.array([0.5]), None),
    "two-int-text": two(pa.array([1]), pa.array(["one"]), None),
    "two-int-bool": two(pa.array([1]), pa.array([True]), None),
    "two-int-widths": two(pa.array([1], pa.int8()), pa.array([2**40]), by_half(1, 2**40)),
    "two-int-uint64": two(pa.array([1]), pa.array([2**64 - 1], pa.uint64()), by_half(1, 2**64 - 1)),
    "two-negative-uint64": two(pa.array([-1]), pa.array([2**64 - 1], pa.uint64()), None),
    "two-date-time": two(pa.array([DAYS[0]]), pa.array([MOMENTS[0]]), by_half(datetime(2024, 2, 29), MOMENTS[0])),
    "two-time-zone": two(pa.array([MOMENTS[0]]), pa.array([UTC_MOMENTS[0]], pa.timestamp("us", "UTC")), None),
    "two-time-zones": two(
        pa.array([UTC_MOMENTS[0]], pa.timestamp("us", "Europe/Berlin")),
        pa.array([UTC_MOMENTS[0]], pa.timestamp("us", "UTC")),
        [UTC_MOMENTS[0]],
    ),
    "two-decimal-scales": two(
        pa.array([Decimal("1.5")], pa.decimal128(10, 1)),
        pa.array([Decimal("1.25")], pa.decimal128(12, 2)),
        by_half(Decimal("1.50"), Decimal("1.25")),
    ),
    "two-decimal-float": two(pa.array([Decimal("1.5")], pa.decimal128(10, 1)), pa.array([0.25]), by_half(1.5, 0.25)),
    "two-null-text": two(pa.nulls(1), pa.array(["z"]), by_half(None, "z")),
    "two-dictionary-text": two(
        pa.array(X).dictionary_encode(), pa.array(["z"]), [*cycled(X, ROWS // 2), *["z"] * (ROWS // 2)]
    ),
    "two-case-twins": Case(
        files=halves(_red, _blue.rename_columns([*BASE, "X"])),
        source="*.parquet",
        means={"x": by_half("red", None), "X": by_half(None, "blue")},
    ),
    "two-formats": Case(
        files={"1.csv": csv_text({"x": X}, rows=range(48)).encode(), "2.parquet": stored(with_odd({"x": X}).slice(48))},
        source=["1.csv", "2.parquet"],
        means={"x": X},
    ),
    "two-csv-number-text": Case(
        files={
            "1.csv": csv_text({"x": ["1"]}, rows=range(48)).encode(),
            "2.csv": csv_text({"x": ["u"]}, rows=range(48, 96)).encode(),
        },
        source="*.csv",
        means=None,
    ),
    "two-zero-rows": Case(
        files={"1.parquet": stored(with_odd({"x": X}, 0)), "2.parquet": stored(with_odd({"x": X}))},
        source="*.parquet",
        means={"x": X},
    ),
    "two-csv-header-only": Case(
        files={"1.csv": PLAIN.splitlines()[0].encode() + b"\n", "2.csv": PLAIN.encode()},
        source="*.csv",
        means={"x": X},
    ),
}


def png() -> bytes:
    """A picture of 2 by 2 points."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)
    points = zlib.compress(b"\0\x00\xff\0\xff\x00")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", points) + chunk(b"IEND", b"")


def pieces(content: bytes, texts: list[str] | None, cut: dict[str, int]) -> Case:
    """A case of one text that is cut into pieces."""
    source = {"uri": "*.txt", "format": "text", "pieces": cut}
    if texts is None:
        return Case(files={"a.txt": content}, source=source, means=None, tabular=False)
    sizes = [len(text.encode()) for text in texts]
    means = {
        "document": ["a.txt"], "position": list(range(len(texts))), "pieces": [len(texts)],
        "offset": [0, *itertools.accumulate(sizes[:-1])], "length": [1] if "lines" in cut else sizes, "text": texts,
    }  # fmt: skip
    return Case(files={"a.txt": content}, source=source, means=means, rows=len(texts), tabular=False)


OTHERS = {
    "images": Case(
        files={"cat/1.png": png(), "dog/[2]ü.png": png()[:-20]},
        rows=2,
        tabular=False,
        source={"uri": "data/*/*.png", "format": "files", "pattern": "{label}/{name}.png"},
        means={
            "path": ["cat/1.png", "dog/[2]ü.png"],
            "label": ["cat", "dog"],
            "name": ["1", "[2]ü"],
            "bytes": [png(), png()[:-20]],
        },
    ),
    "text-lines": pieces(b"one\r\ntwo\nthree", ["one\r\n", "two\n", "three"], {"lines": 1}),
    "text-bom": pieces("\ufeffüb".encode(), ["\ufeff", "üb"], {"bytes": 4}),
    "text-invalid": pieces(b"fine\nnot \xff\n", None, {"lines": 1}),
    "text-utf-16": pieces("one\n".encode("utf-16"), None, {"lines": 1}),
}

CASES: dict[str, Case] = {**CSV, **JSON, **PARQUET, **COMPRESSED, **FOLDERS, **OTHERS}


def write_case(name: str, folder: Path) -> list[dict[str, Any]]:
    """Write a case's files below `folder/data`, and return the spec's `data.source` for a spec in `folder`."""
    case = CASES[name]
    for path, content in case.files.items():
        target = folder / "data" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    source = next(iter(case.files)) if case.source is None else case.source
    below = [
        {**(one if isinstance(one, dict) else {}), "uri": below_data(one["uri"] if isinstance(one, dict) else one)}
        for one in (source if isinstance(source, list) else [source])
    ]
    return [{**one, "csv": case.csv} for one in below] if case.csv else below


def below_data(uri: str) -> str:
    """A case's path or glob, as a spec beside the folder `data` has it."""
    return uri if uri.split("/")[0] == "data" else f"data/{uri}"


if __name__ == "__main__":
    for case_name, folder in itertools.product(CASES, sys.argv[1:]):
        print(case_name, write_case(case_name, Path(folder) / case_name))
