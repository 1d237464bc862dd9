"""Read rows of CSV and JSON Lines: types are found from the whole file, not its first block, in bounded memory."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from data_contracts.errors import UsageError
from data_contracts.foreign_json import check_nesting
from data_contracts.quoting import column_shown, text_of, type_shown
from infra.processes.this_process import note
from infra.sources.csv_guess import MARKS, guess_csv, look_like_numbers, other_separator, says_separator
from infra.sources.csv_lines import CsvFile, joined, pieces, plain_lines
from infra.sources.csv_quotes import Quotes
from infra.sources.json_faults import BYTE_ORDER_MARK, Lines, bad_line, bad_value
from infra.sources.types import QUOTED, Guess, common, converted, from_texts, plain, refuse_twice_named

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
        self._stream = joined(self._watched(itertools.chain([self._head], pieces(stream))))
        if says_separator(self._head):
            raise self.refused(": its first line says how it is separated, and has no names", "leave this line out")
        self.names = file.columns or self._header()

    def watch_quotes(self) -> None:
        """Have `texts` refuse quoted values that do not end as they must; it takes some time."""
        if self._file.quote is not None:
            first = 1 + self._file.settings.skip_rows
            self._quotes = Quotes(self.name, self._file.separator, self._file.quote, first)

    def _watched(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._quotes is not None:
                self._quotes.feed(piece)
            yield piece
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
            with suppress(pa.ArrowInvalid):
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
    """Pieces of whole lines."""
    row, line, rest = 0, 1, b""
    while piece := stream.read(_BLOCK):
        block = rest + piece
        if line == 1:
            block = block.removeprefix(BYTE_ORDER_MARK)
        end = block.find(b"\n")
        if (len(block) if end < 0 else end) > _MOST_LINE_BYTES:
            raise UsageError(
                f"{name}: row {row} is larger than {_MOST_LINE_BYTES >> 20} MiB.",
                remedy="Write JSON Lines, one object a line, and put a larger value in a file of its own.",
            )
        chunk, newline, rest = block.rpartition(b"\n")
        if newline:
            yield Lines(line, row, chunk)
            row += sum(1 for text in chunk.split(b"\n") if text.strip())
            line += chunk.count(b"\n") + 1
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
