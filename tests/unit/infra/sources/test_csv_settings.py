"""CSV files as people have them: read as `data.csv` says, to pandas' rows, or refused with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pydantic import ValidationError

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import LookRequest
from data_contracts.pipeline_spec import CsvSpec, SourceSpec
from infra.contract import draft_worker
from infra.contract.file_statistics import statistics_name
from infra.sources import places
from infra.sources.tables import CsvFile, guess_csv
from tasks.stages.contract_check import reading_settings
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw

ORDERS = "Kunde;Größe;Betrag;Straße\r\n1;1,5;12,50;Königsallee 1\r\n2;-0,25;1e3;\r\n;3;7;Weg, 2\r\n"
MARKS = 'id|"the|text"|n\n1|"a|b\n""c"""|1.5\n\n2|x|\n'
COMMENTS = '# made by hand\nid,text,n\n1,"a # b",2 # a remark\n# 9,9,9\n"2","x\n# no comment",3\n3,it\'s,"4"\n'
# What is written, the settings, and what pandas calls them where the names differ.
READ: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "semicolons and decimal commas": (ORDERS, "utf-8", {"separator": ";", "decimal": ","}, {}),
    "with a byte order mark": (ORDERS, "utf-8-sig", {"separator": ";", "decimal": ","}, {}),
    "cp1252": (ORDERS, "cp1252", {"separator": ";", "decimal": ",", "encoding": "cp1252"}, {}),
    "latin-1": (ORDERS, "latin-1", {"separator": ";", "decimal": ",", "encoding": "latin-1"}, {}),
    "utf-16 with a mark": (ORDERS, "utf-16", {"separator": ";", "decimal": ",", "encoding": "utf-16"}, {}),
    "utf-16 without a mark": (ORDERS, "utf-16-be", {"separator": ";", "decimal": ",", "encoding": "utf-16-be"}, {}),
    "several bytes a character": ("a,b\n1,東京\n2,大阪\n", "shift_jis", {"encoding": "shift_jis"}, {}),
    "carriage returns": ("a,b\r1,x\r2,y\r", "utf-8", {}, {}),
    "carriage returns and utf-16": ("a\tb\r1\tx\r2\ty", "utf-16", {"separator": "\t", "encoding": "utf-16"}, {}),
    "tabs": ('a\tb\n1\t"x\ty"\n2\t\n', "utf-8", {"separator": "\t"}, {}),
    "bars, quotes and lines in values": (MARKS, "utf-8", {"separator": "|"}, {}),
    "single quotes": ("a,b\n1,'x, ''y'''\n2,\"z\"\n", "utf-8", {"quote": "'"}, {"quotechar": "'"}),
    "no quotes": ('a\tb\n1\t5" disk\n2\t"\n', "utf-8", {"separator": "\t", "quote": "none"}, {"quoting": 3}),
    "a title": ('Report, 2024\n\n"two\nlines"\na,b\n1,2\n', "utf-8", {"skip_rows": 3}, {"skiprows": 3}),
    "comments": (COMMENTS, "utf-8", {"comment": "#"}, {}),
    "comments and a title": ("# x\n;\na;b#c\n1;2\n", "utf-8", {"separator": ";", "comment": "#", "skip_rows": 2},
                             {"skiprows": 2}),
    "sep=": ("sep=;\na;b\n1;2\n", "utf-8", {"separator": ";", "skip_rows": 1}, {"skiprows": 1}),
    "thousands": ('a,b\n"1,234",1\n"-12,345,678",2\n', "utf-8", {"thousands": ","}, {}),
    "India": ("a;b\n1'234.5;x\n12'34'567;y\n-1'000;z\n", "utf-8", {"separator": ";", "thousands": "'"}, {}),
    "apostrophes": ("a;b\n1'234.50;1\n7.25;2\n", "utf-8", {"separator": ";", "thousands": "'"}, {}),
    "thousands and fractions": ("a;b\n1.234,5;x\n1.000.000;y\n7,25;z\n", "utf-8",
                                {"separator": ";", "decimal": ",", "thousands": "."}, {}),
    "quoted decimal commas": ('a,b\n"1,5",x\n"2",y\n', "utf-8", {"decimal": ","}, {}),
    "another mark is text": ("a;b\n1.5;1\n2.5;2\n", "utf-8", {"separator": ";", "decimal": ","}, {}),
    "all in quotes": ('"a";"b"\n"1";"x;"\n"2";"y"\n', "utf-8", {"separator": ";"}, {}),
    "a separator at each line's end": ("a,b,\n1,2,\n3,4,\n", "utf-8", {}, {}),
    "names that are empty": (",a,\n1,2,3\n", "utf-8", {}, {}),
    "a line without an end": ("a;b\n1;2", "utf-8", {"separator": ";"}, {}),
    "one column of texts": ("text\nso; and so\nthis; too\n", "utf-8", {}, {}),
    "one column, its name in quotes": ('"so; so"\n1\n', "utf-8", {}, {}),
}  # fmt: skip


def of_pandas(path: Path, settings: dict[str, Any], more: dict[str, Any]) -> pd.DataFrame:
    same = {name: settings[name] for name in ("decimal", "thousands", "encoding", "comment") if name in settings}
    return pd.read_csv(path, sep=settings.get("separator", ","), **same, **more)


@pytest.mark.parametrize("block", [5, 1 << 23])
@pytest.mark.parametrize("case", READ)
def test_rows_values_and_types_are_those_of_pandas(
    case: str, block: int, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_READ_BYTES", block)
    text, encoding, settings, more = READ[case]
    path = raw.write("a.csv", text.encode(encoding))
    ours = raw.read({"uri": "a.csv", "csv": settings})
    theirs = of_pandas(path, settings, more)
    assert ours.to_pylist() == pa.Table.from_pandas(theirs, preserve_index=False).to_pylist()
    kinds = [kind for kind, all_missing in zip(theirs.dtypes, theirs.isna().all(), strict=True) if not all_missing]
    assert [kind for kind in ours.to_pandas().dtypes if str(kind) != "object"] == kinds


def test_pandas_reads_other_numbers_where_digits_are_not_grouped_by_three(raw: Raw) -> None:
    """Pandas takes 01.02.2024 for 1022024, and 1.2 for 12."""
    path = raw.write("a.csv", "day;size\n01.02.2024;1.2\n02.02.2024;1.5\n")
    settings = {"separator": ";", "decimal": ",", "thousands": "."}
    assert of_pandas(path, settings, {})["day"].tolist() == [1022024, 2022024]
    assert raw.read({"uri": "a.csv", "csv": settings}).to_pylist()[0] == {"day": "01.02.2024", "size": "1.2"}


@pytest.mark.parametrize("block", range(1, 8))
def test_a_quote_amid_a_value_begins_nothing_wherever_a_block_ends(
    block: int, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_READ_BYTES", block)
    raw.write("a.csv", 'a,b\n5" disk,1 # "\n"3"" #",2# 3\n')
    rows = [{"a": '5" disk', "b": 1}, {"a": '3" #', "b": 2}]
    assert raw.read({"uri": "a.csv", "csv": {"comment": "#"}}).to_pylist() == rows


def test_tsv_files_have_tabs_unless_the_spec_says_otherwise(raw: Raw) -> None:
    write_files(raw.root, {"a.tsv": "a\tb\n1\tx, y\n", "b.tsv": "a;b\n1;x\n"})
    assert raw.read("a.tsv").to_pylist() == [{"a": 1, "b": "x, y"}]
    assert raw.read({"uri": "b.tsv", "csv": {"separator": ";"}}).to_pylist() == [{"a": 1, "b": "x"}]
    assert raw.resolve("a.tsv")[0].format == "tsv"  # so its keys are not those of a .csv with the same bytes


# A file, the settings, and what the error says and proposes.
SEMICOLONS = 'first line looks separated by semicolons.* Write data.csv: {separator: ";"'
REFUSED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "cp1252": (ORDERS.encode("cp1252"), {},
               'it looks like cp1252. Write data.csv: {separator: ";", decimal: ",", encoding: cp1252}'),
    "cp1250": ("a,b\n1,Łódź\n2,Kraków\n3,Gdańsk\n4,Wrocław\n".encode("cp1250"), {}, "it looks like cp1250"),
    "utf-16": ("a,b\n1,2\n".encode("utf-16"), {}, "it looks like utf-16. Write data.csv: {encoding: utf-16}"),
    "utf-16 without a mark": ("a,b\n1,2\n".encode("utf-16-le"), {},
        "NUL characters; it looks like utf-16-le. Write data.csv: {encoding: utf-16-le}"),
    "semicolons": (ORDERS.encode(), {}, SEMICOLONS + ', decimal: ","}'),
    "semicolons, and a name with a comma": (b"a;b, c;d\n1;2,5;3\n2;3,5;4\n", {}, SEMICOLONS),
    "only names": (b"a;b;c\n", {}, SEMICOLONS + "}"),
    "no line end": (b"a;b;c", {}, SEMICOLONS + "}"),
    "tabs": (b"a\tb\n1\t2\n", {}, r'looks separated by tabs.* Write data.csv: {separator: "\\t"}'),
    "bars": (b"a|b\n1|2\n", {}, 'by vertical bars.* Write data.csv: {separator: "|"}'),
    "commas": (b"a,b\n1,2\n", {"separator": ";"},
        'by commas, but it is read with semicolons. Write data.csv: {separator: ","}'),
    "sep=": (b"sep=;\r\na;b\r\n1;2\r\n", {},
        'says how it is separated.* Write data.csv: {separator: ";", skip_rows: 1}'),
    "sep= and the separator": (b"sep=;\na;b\n1;2\n", {"separator": ";"},
        'Write data.csv: {separator: ";", skip_rows: 1}'),
    "decimal commas": (ORDERS.encode(), {"separator": ";"},
        'numbers with commas. Write data.csv: {separator: ";", decimal: ","}'),
    "points in numbers": (b"a;b\n1.234,50;x\n2;y\n", {"separator": ";", "decimal": ","},
        'decimal: ",", thousands: "."}'),
    "a remark": (b"# by hand, 2024\na,b,c\n1,2,3\n", {}, 'Write data.csv: {comment: "#"}'),
    "a longer row": (b"a;b\n1;2\n3;4;5\n", {"separator": ";"},
        "row 3 .* Correct the row; put a value that has a semicolon"),
    "a longer row after a title": (b"t\na;b\n3;4;5\n", {"separator": ";", "skip_rows": 1},
        "row 3 of the file has 3 values"),
    "separators at the ends of rows": (b"a,b\n1,2,\n", {},
        "If every row ends in a comma, end the first line in one, too"),
    "another encoding": (b"a,b\n1,\xe4\n", {"encoding": "ascii"}, "a.csv is not ascii. Correct data.csv.encoding"),
    "too few lines": (b"a,b\n1,2\n", {"skip_rows": 10**30}, "no row after the lines that data.csv.skip_rows"),
    "no line left": (b"a,b\n1,2\n", {"skip_rows": 2}, "no row after the lines that data.csv.skip_rows leaves out"),
    "comments alone": (b"# a\n# b\n", {"comment": "#"}, "no line with names"),
    "empty lines": (b"\n\n", {}, "no line with names"),
    "NUL in a name": (b"a\0,b\n1,2\n", {}, "its first line has NUL characters"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_looks_otherwise_is_refused_with_what_to_write(case: str, raw: Raw) -> None:
    data, settings, sentence = REFUSED[case]
    raw.write("a.csv", data)
    with pytest.raises(UsageError, match=sentence.replace("{", r"\{").replace("|", r"\|")):
        raw.read({"uri": "a.csv", "csv": settings})


@pytest.mark.parametrize(
    ("data", "settings", "names"),
    [
        (b"a; b\nfoo\nbar\n", {}, ["a; b"]),
        (b"a;b\n1;2\n", {"separator": ","}, ["a;b"]),
        (b"id,a|b\n1,x\n2,y|z\n", {}, ["id", "a|b"]),
        (b"a;b\n1,5;x\n2,5;y\n", {"separator": ";", "decimal": "."}, ["a", "b"]),
        (b"a;b\n1.2;x\n1.234;y\n", {"separator": ";", "decimal": ","}, ["a", "b"]),
    ],
)
def test_a_file_that_may_be_right_is_read(data: bytes, settings: dict[str, Any], names: list[str], raw: Raw) -> None:
    raw.write("a.csv", data)
    assert raw.read({"uri": "a.csv", "csv": settings}).schema.names == names


GUESSED = (
    "semicolons and decimal commas", "cp1252", "utf-16 with a mark", "tabs", "sep=", "thousands and fractions",
    "apostrophes", "bars, quotes and lines in values", "one column of texts",
)  # fmt: skip


@pytest.mark.parametrize("case", GUESSED)
def test_a_guess_reads_what_was_written(case: str) -> None:
    text, encoding, settings, _ = READ[case]
    more = text + text.splitlines(keepends=True)[-1] * 20
    assert guess_csv(more.encode(encoding), CsvFile("a.csv")) == CsvSpec.model_validate(settings)


def test_infer_proposes_what_it_read_by(raw: Raw) -> None:
    raw.write("a.csv", ("sep=;\n" + ORDERS).encode("cp1252"))
    files = raw.resolve("a.csv")
    drafted = draft_worker.main(
        LookRequest(files=files, sources=[SourceSpec(uri="a.csv")], root=str(raw.root)), lambda *_: None
    )
    assert str(drafted.csv) == '{separator: ";", decimal: ",", encoding: cp1252, skip_rows: 1}'
    [names] = [one["kwargs"]["column_set"] for one in drafted.expectations if "column_set" in one["kwargs"]]
    assert names == ["Kunde", "Größe", "Betrag", "Straße"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"separator": ",", "decimal": ","}, "decimal"),
        ({"thousands": ".", "separator": ";"}, "thousands"),
        ({"thousands": ",", "decimal": ","}, "thousands"),
        ({"comment": ","}, "comment"),
        ({"separator": '"'}, "separator"),
        ({"quote": "'", "thousands": "'"}, "quote"),
        ({"separator": ";;"}, "separator"),
        ({"separator": "a"}, "separator"),
        ({"encoding": "klingon"}, "encoding"),
        ({"encoding": "base64"}, "encoding"),
        ({"decimal": "'"}, "decimal"),
        ({"skip_rows": -1}, "skip_rows"),
        ({"separator": "none"}, "separator"),
        ({"comment": "none"}, "comment"),  # it would cut values at this word
        ({"separator": "\u00a0"}, "separator"),
        ({"quote": "\u2019"}, "quote"),
        ({"encoding": "punycode"}, "encoding"),
        ({"encoding": "idna"}, "encoding"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        CsvSpec.model_validate(settings)


def test_a_changed_setting_is_other_data_and_the_default_is_not(raw: Raw) -> None:
    raw.write("a.csv", "a\n1\n")
    [file] = raw.resolve("a.csv")
    plain, default, other = (SourceSpec(uri="a.csv", csv=csv) for csv in (None, CsvSpec(), CsvSpec(comment="#")))
    assert reading_settings([plain]) == reading_settings([default]) == [{"pattern": None, "columns": None}]
    assert reading_settings([other]) == [{"pattern": None, "columns": None, "csv": {"comment": "#"}}]
    assert statistics_name(file, plain) == statistics_name(file, default) != statistics_name(file, other)
    raw.write("b.csv", "a;b\n1;2\n")
    for separator, names in ((";", ["a", "b"]), (",", ["a;b"])):
        assert raw.read({"uri": "b.csv", "csv": {"separator": separator}}).schema.names == names
