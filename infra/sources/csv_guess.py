"""Guesses how a CSV file was written, from its beginning: for errors, and for commands that write a spec.

Nothing is read by a guess: a person writes it into the spec. DuckDB's sniffer finds separator, quotes and what stands
before the header, charset-normalizer an encoding that is neither UTF nor of Western Europe.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import itertools
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from data_contracts.pipeline_spec import CsvSpec
from infra import scratch
from infra.sources.csv_lines import CsvFile

MARKS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_SAMPLE_CHARACTERS = 1 << 18
_LOOK_ROWS = 20
_NUMBER_ROWS = 1000
# What Excel writes before the header, perhaps with the separators of empty cells.
_SAYS = re.compile(r'"?sep=([^\r\n])"?[,;\t|]*(?:\r\n|\r|\n|\Z)', re.IGNORECASE)
_LINE_END = re.compile(r"\r\n|\r|\n")
_GROUPS = ". \u00a0\u202f"
_DECIMAL_COMMA = rf"[+-]?(?:\d+|\d{{1,3}}(?:[{_GROUPS}]\d{{3}})+)(?:,\d+)?"
# With a decimal point: 1,234.50, or 1'234.50 as in Switzerland.
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([,'\u2019])\d{3}(?:\1\d{3})*)?(?:\.\d+)?|[+-]?\d+(?:\.\d+)?")
# Of cp1252: a sign amid a word, and a word of accented letters alone. Such a text is of another encoding.
_NOT_WESTERN = re.compile(r"[^\W\d_][¡-©«-´¶-¹»-¿×÷][^\W\d_]|[À-ÿ]{4}")


def says_separator(head: bytes) -> bool:
    """Whether a file begins with Excel's line `sep=;`."""
    return bool(_SAYS.match(head[:64].decode("utf-8-sig", errors="replace")))


def other_separator(text: str, names: list[str], file: CsvFile) -> str | None:
    """The separator by which a file looks separated instead of its own, or None.

    One column whose name has a separator that its values do not have stays one column; the spec's word stays for files
    with commas.
    """
    if file.settings.separator == ",":
        return None
    for mark in MARKS:
        if mark == file.separator or not any(mark in name for name in names):
            continue
        with contextlib.suppress(csv.Error):
            widths = [len(row) for row in itertools.islice(file.rows(text, mark), _LOOK_ROWS) if row]
            several = [width for width in widths[1:] if width > 1]
            if len(names) == 1:
                looks = widths[0] > 1 and (bool(several) or len(widths) == 1)
            else:
                looks = file.settings.separator is None and len(several) > 0 and set(widths) == {widths[0]}
            if looks and widths[0] > len(names):
                return mark
    return None


def look_like_numbers(texts: pa.Array, settings: CsvSpec) -> bool | None:
    """Whether texts look like numbers with a decimal comma: False if one does not, None if they may be others.

    If the decimal comma is named, only 1.234,50 shows that digits are grouped: 1.234 may be another text.
    """
    if pc.all(pc.match_substring_regex(texts, rf"^\s*{_DECIMAL_COMMA}\s*$")).as_py() is False:
        return False
    sign = "," if settings.decimal is None else rf"\d[{_GROUPS}]\d{{3}},"
    return True if pc.any(pc.match_substring_regex(texts, sign)).as_py() else None


def guess_csv(head: bytes, file: CsvFile) -> CsvSpec:
    """How a file was written, as far as its beginning shows it; what the spec says stays, unless it cannot be.

    Args:
        head: its beginning, read as `file` says (`csv_lines.plain_lines`).
    """
    before = file.settings
    found: dict[str, Any] = {"encoding": before.encoding or _encoding(head)}
    text = head.decode("utf-8" if before.encoding else found["encoding"] or "utf-8", errors="ignore")
    text = text.removeprefix("\ufeff")[:_SAMPLE_CHARACTERS]
    if len(head) >= _SAMPLE_CHARACTERS:
        text = text[: max(text.rfind("\n"), text.rfind("\r")) + 1]
    if says := _SAYS.match(text):
        found |= {"separator": says[1], "skip_rows": 1}
    else:
        found |= _sniffed(text)
    if skip := found.get("skip_rows", 0):
        text, found["skip_rows"] = _LINE_END.split(text, skip)[-1], skip + before.skip_rows
    if found.get("separator", file.separator) == file.separator:
        found["separator"] = before.separator
    with contextlib.suppress(csv.Error):
        rows = file.rows(text, found["separator"])
        found |= _numbers([row for row in itertools.islice(rows, _NUMBER_ROWS) if row][1:])
    given = before.model_dump(exclude_defaults=True)
    found = {name: one for name, one in found.items() if one}
    stay = {name: one for name, one in given.items() if name not in ("separator", "skip_rows") or name not in found}
    try:
        return CsvSpec.model_validate({**found, **stay})
    except ValidationError:
        return before


def _encoding(head: bytes) -> str | None:
    """An encoding that is not UTF-8, or None."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    half = len(head) // 2
    for at, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if head[at::2].count(0) * 2 > half > 0:
            return name
    with contextlib.suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(head)
        return None
    with contextlib.suppress(UnicodeDecodeError):
        if not _NOT_WESTERN.search(head.decode("cp1252")):
            return "cp1252"
    with contextlib.suppress(ImportError):  # code of users may run in an environment of their own
        import charset_normalizer

        best = charset_normalizer.from_bytes(head[:_SAMPLE_CHARACTERS]).best()
        return None if best is None else codecs.lookup(best.encoding).name
    return None


def _sniffed(text: str) -> dict[str, Any]:
    """Separator, quote, comment and lines to skip, as DuckDB finds them, if that makes several columns."""
    try:
        import duckdb
    except ImportError:
        return {}
    with scratch.make("csv") as folder:
        (folder.path / "sample.csv").write_text(text, newline="")
        config: dict[str, Any] = {
            "threads": 1,
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
        }
        try:
            with duckdb.connect(config=config) as connection:
                query = "select Delimiter, Quote, Comment, SkipRows, len(Columns) from sniff_csv(?)"
                [[separator, quote, comment, skip, width]] = connection.execute(
                    query, [str(folder.path / "sample.csv")]
                ).fetchall()
        except duckdb.Error:
            return {}
    skipped = _LINE_END.split(text, skip)[:skip]
    if separator not in MARKS or width < 2 or any(re.fullmatch(r"\w+", line) for line in skipped):
        return {}  # a single word is the name of a single column
    found: dict[str, Any] = {"separator": separator, "skip_rows": skip, "quote": "'" if quote == "'" else None}
    signs = {line[:1] for line in skipped if line.strip()}
    if signs == {"#"} or comment == "#":
        found |= {"comment": "#", "skip_rows": 0}
    elif any(separator in line for line in skipped):
        found["skip_rows"] = 0  # these are rows, of which one is not like the others
    return found


def _numbers(rows: list[list[str]]) -> dict[str, str]:
    """The decimal mark and the grouping that the columns of numbers have."""
    found: dict[str, str] = {}
    for column in itertools.zip_longest(*rows, fillvalue=""):
        values = [value.strip() for value in column if value.strip()]
        commas = [value for value in values if "," in value]
        grouped = [match for value in values if (match := _GROUPED.fullmatch(value))]
        groups = {match[1] for match in grouped if match[1] and (match[0].count(match[1]) > 1 or "." in match[0])}
        if len(grouped) == len(values) and len(groups) == 1:
            found["thousands"] = groups.pop()
        elif commas and all(re.fullmatch(_DECIMAL_COMMA, value) for value in values):
            marks = [match[1] for value in values if (match := re.search(rf"\d([{_GROUPS}])\d{{3}}", value))]
            found |= {"decimal": ",", **({"thousands": marks[0]} if marks else {})}
    return found
