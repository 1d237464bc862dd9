"""Reads rows of CSV and JSON Lines: types are found from the whole file, not its first block, in bounded memory.

The bytes of a CSV file become UTF-8, without skipped lines and comments, before Arrow parses them, and their quotes are
watched, where Arrow and pandas would swallow rows without a word. How a CSV file was written is guessed from its
beginning, for errors and for commands that write a spec; nothing is read by a guess: a person writes it into the spec.
DuckDB's sniffer finds separator, quotes and what stands before the header, charset-normalizer an encoding that is
neither UTF nor of Western Europe.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, Literal, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
from numpy.typing import NDArray
from pydantic import ValidationError

from data_contracts.errors import UsageError
from data_contracts.foreign_files import check_nesting
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import CsvSpec, SourceSpec
from data_contracts.pipeline_spec.data import NO_QUOTE
from data_contracts.quoting import column_shown, text_of, type_shown
from infra import scratch
from infra.processes.this_process import note
from infra.sources.places import chunks, joined
from infra.sources.types import (
    BYTE_ORDER_MARK,
    QUOTED,
    Guess,
    Lines,
    Notation,
    bad_line,
    bad_value,
    common,
    converted,
    from_texts,
    plain,
    refuse_twice_named,
)

# Also the largest CSV row, so that data without line ends is not read without bound.
_BLOCK = 1 << 23
# The largest JSON Lines row.
_MOST_LINE_BYTES = 1 << 23
_HEADER_BYTES = 1 << 20
# The settings that decide where a value ends.
_LAYOUT = ("separator", "skip_rows", "comment", "quote")
_LONG_NUMBER = r"[:,\[\s-]\d{16,}[\s,}\]]|\d{309}"
# Arrow's own list, and what pandas adds to it. In quotes these are texts.
_MISSING = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
]  # fmt: skip
# The largest value or comment, and all lines that are skipped.
_MOST_BYTES = 1 << 23
_CHUNK = 1 << 20  # bytes that are looked at together, so that they stay in the processor's cache
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


def csv_schema(stream: BinaryIO, file: CsvFile) -> tuple[pa.Schema, dict[str, int]]:
    """Names and types of a CSV file's columns, and the first row (from 0) with text of each column that became text."""
    table = _Csv(stream, file)
    table.watch_quotes()
    settings = file.settings
    guesses = {column: Guess(notation=file.notation) for column in table.names}
    # Columns of texts that all look like 12,50 or 1.234,50, in a file that says nothing of such numbers.
    suspects = set(table.names) if file.separator != "," and None in (settings.decimal, settings.thousands) else set()
    numbers = set[str]()
    row = 0
    for batch in table.texts(guesses):
        for column, texts in zip(batch.schema.names, batch.columns, strict=True):
            guesses[column].show(texts, row)
            if column in suspects and (looks := look_like_numbers(texts, settings)) is not None:
                (numbers.add if looks else suspects.remove)(column)
        row += batch.num_rows
    schema = pa.schema([(column, guess.kind) for column, guess in guesses.items()])
    for at, one in enumerate(schema):
        if one.name in suspects & numbers and one.type == pa.string():
            sentence = f": all values of the column {column_shown(one.name, at)} are numbers with commas"
            raise table.refused(sentence, 'decimal: "." if they are texts')
    return schema, {column: guess.text_from for column, guess in guesses.items() if guess.text_from is not None}


def csv_header(stream: BinaryIO, file: CsvFile) -> list[str]:
    """The names of a CSV file's columns; reads its beginning alone."""
    return _Csv(stream, file).names


def csv_batches(stream: BinaryIO, file: CsvFile, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """Rows of a CSV file, with those columns of `types` that it has, cast to these types."""
    row = 0
    for batch in _Csv(stream, file).texts(types):
        arrays = [
            converted(
                texts,
                types[column],
                partial(from_texts, kind=types[column], notation=file.notation),
                file.name,
                row,
                column,
            )
            for column, texts in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names) if arrays else batch
        row += batch.num_rows


class _Csv:
    """A CSV file whose header was read: its column names, and where its rows begin."""

    def __init__(self, stream: BinaryIO, file: CsvFile) -> None:
        note(file.name, 0)
        self._file, self.name, self._lines, self._has_rows = file, file.name, 0, True
        stream = plain_lines(stream, file)
        self._head = _head(stream, file.name)
        if not self._head:
            raise UsageError(f"{file.name} is empty.", remedy="Write it again or leave it out.")
        self._quotes: Quotes | None = None
        self._stream = joined(self._watched(itertools.chain([self._head], chunks(stream))))
        if says_separator(self._head):
            raise self.refused(": its first line says how it is separated, and has no names", "leave this line out")
        self.names = file.columns or self._header()

    def watch_quotes(self) -> None:
        """Have `texts` refuse quoted values that do not end as they must; it takes some time."""
        if self._file.quote is not None:
            first = 1 + self._file.settings.skip_rows
            self._quotes = Quotes(self.name, self._file.separator, self._file.quote, first)

    def _watched(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._quotes is not None:
                self._quotes.feed(chunk)
            yield chunk
        if self._quotes is not None:
            self._quotes.finish()

    def texts(self, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        """All values as text; missing values are null, a quoted empty string is an empty string."""
        if not self._has_rows:
            return
        chosen = [column for column in self.names if column in columns]
        bad: list[Any] = []

        def refuse(row: Any) -> str:
            bad.append(row)
            return "error"

        try:
            reader = pyarrow.csv.open_csv(
                self._stream,
                # Only a single-threaded reader knows the number of a bad row.
                read_options=pyarrow.csv.ReadOptions(
                    column_names=self.names, skip_rows=self._lines, block_size=_BLOCK, use_threads=False
                ),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=self._file.separator,
                    quote_char=self._file.quote or False,
                    newlines_in_values=self._file.quote is not None,
                    invalid_row_handler=refuse,
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types={column: pa.string() for column in self.names},
                    include_columns=chosen or self.names[:1],  # one column is read so that rows can be counted
                    null_values=_MISSING,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            row = 0
            for batch in reader:
                yield batch.select(chosen)
                row += batch.num_rows
                note(self.name, row)
        except pa.ArrowInvalid as error:
            raise self._error(error, bad) from error

    def refused(self, sentence: str, otherwise: str, separator: str | None = None) -> UsageError:
        """The error for a file that looks as if it was written in another way than it is read."""
        looks = guess_csv(self._head, self._file)
        looks = looks if separator is None else looks.model_copy(update={"separator": separator})
        encoding = f"; it looks like {looks.encoding}" if looks.encoding != self._file.settings.encoding else ""
        remedy = (
            f"Write data.csv: {looks}"
            if looks != self._file.settings
            else "Say in data.csv how it is written (such as encoding: cp1252)"
        )
        return UsageError(f"{self.name}{sentence}{encoding}.", remedy=f"{remedy}, or {otherwise}.")

    def _header(self) -> list[str]:
        text = self._head.decode("utf-8-sig", errors="surrogateescape")
        reader = self._file.rows(text)
        try:
            names: list[str] = next((row for row in reader if row), [])
            if not names:
                raise UsageError(f"{self.name} has no line with names.", remedy="Write it again or leave it out.")
            other = other_separator(text, names, self._file)
            names = [column or f"Unnamed: {i}" for i, column in enumerate(names)]  # the names that pandas gives them
            "".join(names).encode()
        except UnicodeEncodeError as error:
            raise self.refused(" is not a CSV file in UTF-8", "convert it to UTF-8") from error
        except csv.Error as error:
            raise UsageError(
                f"{self.name}: a name in the first line is longer than {csv.field_size_limit():,} characters.",
                remedy="Check that the quotes of the first line are closed.",
            ) from error
        if other is not None:
            marks = f"separated by {MARKS[other]}, but it is read with {MARKS.get(self._file.separator, 'others')}"
            otherwise = 'separator: "," if that is right' if self._file.separator == "," else "put the name in quotes"
            raise self.refused(f": its first line looks {marks}", otherwise, other)
        if any("\0" in name for name in names):
            raise self.refused(": its first line has NUL characters", "convert it to UTF-8")
        refuse_twice_named(self.name, names)
        self._lines = reader.line_num
        self._has_rows = len(self._head) >= _HEADER_BYTES or any(reader)
        return names

    def _error(self, error: pa.ArrowInvalid, bad: list[Any]) -> UsageError:
        """Replace Arrow's message, which quotes the row's text, because that may be sensitive."""
        settings = self._file.settings
        if bad:
            row, values, columns = bad[0].number + settings.skip_rows, bad[0].actual_columns, bad[0].expected_columns
            mark = MARKS.get(self._file.separator, "separator").removesuffix("s")
            sentence = f": row {row} of the file has {values} values, but there are {columns} columns"
            otherwise = f"correct the row; put a value that has a {mark} in double quotes"
            looks = guess_csv(self._head, self._file)
            if any(getattr(looks, name) != getattr(settings, name) for name in _LAYOUT):
                return self.refused(sentence, otherwise)
            if values == columns + 1 and bad[0].text.endswith(self._file.separator):
                otherwise = f"if every row ends in a {mark}, end the first line in one, too; else {otherwise}"
            return UsageError(f"{self.name}{sentence}.", remedy=f"{otherwise[0].upper()}{otherwise[1:]}.")
        if "UTF8" in str(error):
            return self.refused(" is not UTF-8", "convert it to UTF-8")
        return UsageError(
            f"{self.name} cannot be read as CSV.", remedy="Check its quotes, and that no row is larger than 8 MiB."
        )


def _head(stream: BinaryIO, name: str) -> bytes:
    """The beginning of a file, with its first line; UsageError if that is larger than a row may be."""
    head = stream.read(_HEADER_BYTES)
    if len(head) == _HEADER_BYTES and not _ends_line(head):
        head += stream.read(_BLOCK - _HEADER_BYTES)
        if len(head) == _BLOCK and not _ends_line(head):
            raise UsageError(
                f"{name}: the first line is larger than {_BLOCK >> 20} MiB.",
                remedy="Leave out columns that are not needed, or write Parquet.",
            )
    return head


def _ends_line(head: bytes) -> bool:
    return b"\n" in head or b"\r" in head


def json_schema(stream: BinaryIO, name: str) -> pa.Schema:
    """Column names and types of a JSON Lines file; UsageError if a column has two kinds of value."""
    types: dict[str, pa.DataType] = {}
    guesses: dict[str, Guess] = {}
    signed: set[str] = set()
    rows = 0
    for lines in _lines(stream, name):
        rows += lines.data.strip().count(b"\n") + 1
        found = _inferred(lines, name, guesses, signed)
        for at, (column, kind) in enumerate(found.items()):
            both = common(types.get(column, pa.null()), kind)
            if both is None:
                raise UsageError(
                    f"{name}: the column {column_shown(column, at)} is {type_shown(types[column])} at first and "
                    f"{type_shown(kind)} from about row {lines.row}.",
                    remedy="Give it one type.",
                )
            types[column] = both
    types |= {column: guess.kind for column, guess in guesses.items()}
    types |= {column: pa.float64() for column in signed if types[column] == pa.uint64()}
    schema = pa.schema(list(types.items()))
    if rows == 1 and _is_whole_table(schema):
        raise UsageError(
            f"{name} has a whole table in one object, as pandas' to_json writes it; here, each line is a row.",
            remedy='Write it by to_json(…, orient="records", lines=True).',
        )
    return schema


def _is_whole_table(row: pa.Schema) -> bool:
    """Whether an object is laid out as pandas lays out a table: by columns, by rows, by "split" or "table"."""
    if set(row.names) in ({"columns", "index", "data"}, {"schema", "data"}):
        return True
    objects = bool(row.names) and all(pa.types.is_struct(kind) for kind in row.types)
    return objects and (_is_numbered(row.names) or all(_is_numbered([one.name for one in kind]) for kind in row.types))


def _is_numbered(names: list[str]) -> bool:
    return bool(names) and names == [str(at) for at in range(len(names))]


def _inferred(lines: Lines, name: str, guesses: dict[str, Guess], signed: set[str]) -> dict[str, pa.DataType]:
    """The type of each column in some lines; of texts, what they mean is left to the guesses.

    Args:
        signed: gets the columns with a whole number below 0.
    """

    def parsed() -> pa.Table:
        return _parsed(lines, name, pa.schema([(column, pa.string()) for column in guesses]), "infer")

    table = parsed()
    found = {one.name: plain(one.type) for one in table.schema}
    times = [column for column, kind in found.items() if pa.types.is_timestamp(kind)]
    for column, kind in found.items():
        if column in times or pa.types.is_string(kind):
            guesses.setdefault(column, Guess(QUOTED))
            found[column] = pa.string()
        elif pa.types.is_int64(kind) and pc.min(table.column(column)).as_py() < 0:
            signed.add(column)
        elif pa.types.is_float64(kind) and (pc.max(table.column(column)).as_py() or 0) >= 2**63:
            # Arrow reads whole numbers beyond int64 as float64, which would change their digits.
            with contextlib.suppress(pa.ArrowInvalid):
                found[column] = _read(lines.data, pa.schema([(column, pa.uint64())]), "ignore").field(column).type
    table = parsed() if times else table
    for column in guesses:
        guesses[column].show(table.column(column).combine_chunks(), lines.row)
    return found


def json_start(stream: BinaryIO, name: str) -> pa.Schema:
    """Columns and types of the first rows of a JSON Lines file; reads its beginning alone."""
    first = next(_lines(stream, name), None)
    return pa.schema([]) if first is None else _parsed(first, name, pa.schema([]), "infer").schema


def json_batches(stream: BinaryIO, name: str, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """Rows of a JSON Lines file, with the columns in `types`, cast to these types; Misfit if that changes a value."""
    schema = pa.schema(list(types.items()))
    # Arrow's parser takes days for numbers.
    read = pa.schema([(column, pa.string() if pa.types.is_date(kind) else kind) for column, kind in types.items()])
    for lines in _lines(stream, name):
        table = _parsed(lines, name, read, "ignore").select(schema.names)
        try:
            table = table if schema == read else table.cast(schema)
        except pa.ArrowInvalid as error:
            raise bad_value(lines, name, schema) or error from error
        if any(map(_may_be_rounded, table.columns)):
            # Only then look for the text of a number that float64 does not hold: of 16 digits if whole, or of 309.
            long = pc.match_substring_regex(pa.scalar(lines.data, pa.binary()), _LONG_NUMBER).as_py()
            if long and (rounded := bad_value(lines, name, schema)):
                raise rounded
        yield from table.combine_chunks().to_batches()


def _may_be_rounded(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether there is a number, at any depth, that float64 need not hold exactly."""
    kind = values.type
    if pa.types.is_floating(kind):
        return bool(pc.any(pc.greater_equal(pc.abs(values), 2.0**53)).as_py())
    if pa.types.is_list(kind):
        return _may_be_rounded(pc.list_flatten(values))
    return pa.types.is_struct(kind) and any(
        _may_be_rounded(pc.struct_field(values, [at])) for at in range(kind.num_fields)
    )


def _lines(stream: BinaryIO, name: str) -> Iterator[Lines]:
    """Chunks of whole lines."""
    row, line, rest = 0, 1, b""
    while chunk := stream.read(_BLOCK):
        block = rest + chunk
        if line == 1:
            block = block.removeprefix(BYTE_ORDER_MARK)
        end = block.find(b"\n")
        if (len(block) if end < 0 else end) > _MOST_LINE_BYTES:
            raise UsageError(
                f"{name}: row {row} is larger than {_MOST_LINE_BYTES >> 20} MiB.",
                remedy="Write JSON Lines, one object a line, and put a larger value in a file of its own.",
            )
        whole, newline, rest = block.rpartition(b"\n")
        if newline:
            yield Lines(line, row, whole)
            row += sum(1 for text in whole.split(b"\n") if text.strip())
            line += whole.count(b"\n") + 1
    if rest.strip():
        yield Lines(line, row, rest)


def _parsed(lines: Lines, name: str, schema: pa.Schema, unexpected: Literal["infer", "ignore"]) -> pa.Table:
    if not lines.data.strip():
        return schema.empty_table()
    note(name, lines.row)
    try:
        check_nesting(lines.data)  # Arrow's parser recurses in C++: deep nesting would end the process
    except ValueError as error:
        raise UsageError(
            f"{name}: from row {lines.row} on, {text_of(error)}.", remedy="Write it flat, or as Parquet."
        ) from error
    try:
        # Arrow's parser accepts both.
        pa.array([lines.data], pa.binary()).cast(pa.string())
        if lines.data.startswith(BYTE_ORDER_MARK):
            raise pa.ArrowInvalid("a byte order mark within the file")
        return _read(lines.data, schema, unexpected)
    except pa.ArrowInvalid as error:
        raise _json_error(error, lines, name, schema) from error


def _read(data: bytes, schema: pa.Schema, unexpected: Literal["infer", "ignore"]) -> pa.Table:
    return pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def _json_error(error: pa.ArrowInvalid, lines: Lines, name: str, schema: pa.Schema) -> UsageError:
    """As for CSV, without the values that Arrow quotes: only the kinds and the row's number."""
    text = str(error)
    row = text.rpartition(" in row ")[2]
    where = f"row {lines.row + int(row)}" if row.isdigit() else f"a row from {lines.row} on"
    if "changed from" in text and "Column()" not in text:
        what = text[text.index("Column(") : text.rindex(" in row ")]
        column = column_shown(what.removeprefix("Column(/").partition(")")[0])
        kinds = what.partition(" changed from ")[2]
        return UsageError(f"{name}: the column {column} changes from {kinds} in {where}.", remedy="Give it one type.")
    return (
        bad_line(lines, name)
        or bad_value(lines, name, schema)
        or UsageError(f"{name}: {where} cannot be read as JSON.", remedy="Write JSON Lines, one object a line.")
    )


@dataclass(frozen=True)
class CsvFile:
    """How a CSV file is read.

    Attributes:
        columns: the names of its columns, if they do not stand in its first line.
        tabs: whether values are separated by tabs if the settings do not say by what.
    """

    name: str
    columns: list[str] | None = None
    settings: CsvSpec = field(default_factory=CsvSpec)
    tabs: bool = False

    @classmethod
    def of(cls, file: SourceFile, sources: list[SourceSpec]) -> CsvFile:
        """As the file's source says."""
        source = sources[file.source]
        return cls(file.uri, source.columns, source.csv or CsvSpec(), file.format == "tsv")

    @property
    def separator(self) -> str:
        """What stands between two values."""
        return self.settings.separator or ("\t" if self.tabs else ",")

    @property
    def quote(self) -> str | None:
        """What encloses values."""
        return None if self.settings.quote == NO_QUOTE else self.settings.quote or '"'

    @property
    def notation(self) -> Notation:
        """How numbers are written."""
        return Notation(self.settings.decimal or ".", self.settings.thousands or "")

    def rows(self, text: str, separator: str | None = None) -> Any:
        """The rows of a text, perhaps with another separator: the reader of Python's module `csv`."""
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE
        lines = io.StringIO(text, newline="")
        return csv.reader(lines, delimiter=separator or self.separator, quotechar=self.quote, quoting=quoting)


def plain_lines(stream: BinaryIO, file: CsvFile) -> BinaryIO:
    """A CSV file's bytes as other programs write them, but for separator and quotes.

    Raises: UsageError, also while it is read, for bytes that the encoding does not have, and lines that are not there.
    """
    settings = file.settings
    if settings.encoding not in (None, "utf-8"):
        stream = joined(_decoded(stream, file.name, settings.encoding))
    if settings.skip_rows:
        stream = joined(_without_first(stream, file))
    if settings.comment is not None:
        stream = joined(_uncommented(stream, file, settings.comment))
    return stream


def _decoded(stream: BinaryIO, name: str, encoding: str) -> Iterator[bytes]:
    try:
        for text in codecs.iterdecode(chunks(stream), encoding):
            yield text.encode()
    except UnicodeError as error:
        raise UsageError(
            f"{name} is not {encoding}.", remedy="Correct data.csv.encoding, or convert the file to UTF-8."
        ) from error


def _without_first(stream: BinaryIO, file: CsvFile) -> Iterator[bytes]:
    """All but the first lines; as for pandas, a line end in quotes ends none of them."""
    quote, head, count = re.escape((file.quote or "").encode()), stream.read(_MOST_BYTES), file.settings.skip_rows
    inside = rb"(?:[^%b\r\n]++|%b[^%b]*+%b?+)*+" % (quote, quote, quote, quote) if quote else rb"[^\r\n]*+"
    match = re.match(rb"(?:%b(?:\r\n|\r|\n)){%d}" % (inside, min(count, len(head))), head)
    if match is None or match.end() == len(head):
        raise UsageError(
            f"{file.name} has no row after the lines that data.csv.skip_rows leaves out ({count}).",
            remedy="Correct skip_rows, and check that quotes in these lines are closed.",
        )
    return itertools.chain([head[match.end() :]], chunks(stream))


def _uncommented(stream: BinaryIO, file: CsvFile, mark: str) -> Iterator[bytes]:
    """The bytes without comments; a line that was a comment is left empty, so lines keep their numbers."""
    comment, separator, quote = (re.escape(one.encode()) for one in (mark, file.separator, file.quote or ""))
    # A quote encloses a value only if it stands at its beginning. It is looked for first, which is faster.
    quoted = rb"%b(?<![^%b\r\n]%b)(?:[^%b]++|%b%b)*+%b?|" % (quote, separator, *[quote] * 5)
    special = re.compile((quoted if quote else b"") + rb"(?P<comment>%b[^\r\n]*+)" % comment)
    before, rest = b"", b""  # the last byte that was given, and what may continue in the next chunk
    for chunk in itertools.chain(chunks(stream), [b""]):
        data, kept = before + rest + chunk, []
        done, end = len(before), len(data)
        for match in special.finditer(data, done):
            if match.end() == len(data) and chunk:
                end = match.start()
                break
            if match["comment"] is not None:
                kept.append(data[done : match.start()])
                done = match.end()
        yield b"".join([*kept, data[done:end]])
        before, rest = data[end - 1 : end], data[end:]
        if len(rest) > _MOST_BYTES:
            raise UsageError(
                f"{file.name} has a value or a comment larger than {_MOST_BYTES >> 20} MiB.",
                remedy="Check that quotes are closed.",
            )


class Quotes:
    """Watches the bytes of a CSV file pass by, and raises UsageError if a quoted value does not end as it must.

    A quote that opens and is not closed makes all lines up to the next quote one value, which may be most of the file.

    Args:
        name: of the file, for the error.
        separator: the character between two values, of ASCII.
        quote: the character around a value that holds a separator or a line end, of ASCII.
        first: number of the first line.
    """

    def __init__(self, name: str, separator: str = ",", quote: str = '"', first: int = 1) -> None:
        self._name, self._quote, self._code = name, quote.encode(), ord(quote)
        self._opens, self._closes = np.zeros(256, bool), np.zeros(256, bool)
        self._opens[[ord(separator), *b"\r\n", self._code]] = True
        self._closes[[ord(separator), *b"\r\n \t", self._code]] = True
        self._rest = b"\n"  # the byte before what comes next, and quotes that were not looked at
        self._inside = False
        self._line, self._opened = first, 0

    def feed(self, block: bytes) -> None:
        """Take in the next bytes of the file."""
        for start in range(0, len(block), _CHUNK):
            self._look(block[start : start + _CHUNK])

    def finish(self) -> None:
        """The file has ended."""
        self.feed(b"\n")
        if self._inside:
            raise self._fault("has no closing quote")

    def _look(self, chunk: bytes) -> None:
        data = self._rest + chunk
        end = len(data.rstrip(self._quote))
        self._rest = data[end - 1 :]
        codes = np.frombuffer(data, np.uint8, end)
        quotes = np.flatnonzero(codes == self._code)
        if len(quotes) and not self._alternate(codes, quotes):
            self._follow(data, quotes.tolist())
        self._line += data.count(b"\n", 1, end)

    def _alternate(self, codes: NDArray[np.uint8], quotes: NDArray[np.int64]) -> bool:
        """Whether each second quote opens a value or is half of a pair, and each other one closes one or is such."""
        first = int(self._inside)
        opening, closing = quotes[first::2], quotes[1 - first :: 2]
        if not (self._opens[codes[opening - 1]].all() and self._closes[codes[closing + 1]].all()):
            return False
        if len(opening):
            self._opened = self._line + int(np.count_nonzero(codes[1 : opening[-1]] == ord("\n")))
        self._inside = bool(first + len(quotes) & 1)
        return True

    def _follow(self, data: bytes, quotes: list[int]) -> None:
        """Look at each quote in turn: there are some inside of values that are not quoted."""
        pair = -1
        for at in quotes:
            if at == pair:
                continue
            if not self._inside:
                if data[at - 1] != self._code and self._opens[data[at - 1]]:
                    self._inside, self._opened = True, self._line + data.count(b"\n", 1, at)
            elif data[at + 1] == self._code:
                pair = at + 1
            elif self._closes[data[at + 1]]:
                self._inside = False
            else:
                raise self._fault("goes on after its closing quote")

    def _fault(self, what: str) -> UsageError:
        return UsageError(
            f"{self._name}: a value in quotes that begins in line {self._opened} of the file {what}.",
            remedy="Close the quotes, and write a quote inside a quoted value twice; or write data.csv: {quote: none}"
            " if quotes are letters like others.",
        )


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


class _Written(TypedDict, total=False):
    """Fields of `CsvSpec`, as far as a file shows them."""

    encoding: str | None
    separator: str | None
    skip_rows: int
    quote: str | None
    comment: str
    decimal: str
    thousands: str


def guess_csv(head: bytes, file: CsvFile) -> CsvSpec:
    """How a file was written, as far as its beginning shows it; what the spec says stays, unless it cannot be.

    Args:
        head: its beginning, read as `file` says (`plain_lines`).
    """
    before = file.settings
    encoding = before.encoding or _encoding(head)
    text = head.decode("utf-8" if before.encoding else encoding or "utf-8", errors="ignore")
    found: _Written = {"encoding": encoding}
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
    guessed = {name: one for name, one in found.items() if one}
    stay = {name: one for name, one in given.items() if name not in ("separator", "skip_rows") or name not in guessed}
    try:
        return CsvSpec.model_validate({**guessed, **stay})
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


def _sniffed(text: str) -> _Written:
    """Separator, quote, comment and lines to skip, as DuckDB finds them, if that makes several columns."""
    try:
        import duckdb
    except ImportError:
        return {}
    with scratch.make("csv") as folder:
        (folder.path / "sample.csv").write_text(text, newline="")
        config: dict[str, str | bool | int | float | list[str]] = {
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
    found: _Written = {"separator": separator, "skip_rows": skip, "quote": "'" if quote == "'" else None}
    signs = {line[:1] for line in skipped if line.strip()}
    if signs == {"#"} or comment == "#":
        found |= {"comment": "#", "skip_rows": 0}
    elif any(separator in line for line in skipped):
        found["skip_rows"] = 0  # these are rows, of which one is not like the others
    return found


def _numbers(rows: list[list[str]]) -> _Written:
    """The decimal mark and the grouping that the columns of numbers have."""
    found: _Written = {}
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
