"""Read rows of CSV and JSON Lines: types are found from the whole file, not its first block, in bounded memory."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from data_contracts.errors import UsageError
from data_contracts.foreign_json import check_nesting
from data_contracts.quoting import column_shown, text_of
from infra.processes.reading import note
from infra.sources.types import Guess, common, from_texts, plain

# Also the largest CSV row, so that data without line ends is not read without bound.
_BLOCK = 1 << 23
# The largest JSON Lines row.
_MOST_LINE_BYTES = 1 << 23
_HEADER_BYTES = 1 << 20
# Arrow's own list, and what pandas adds to it. In quotes these are texts.
_MISSING = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
]  # fmt: skip


def csv_schema(stream: BinaryIO, name: str, columns: list[str] | None) -> tuple[pa.Schema, dict[str, int]]:
    """Names and types of a CSV file's columns, and the first row (from 0) with text of each column that became text."""
    table = _Csv(stream, name, columns)
    guesses = {column: Guess() for column in table.names}
    row = 0
    for batch in table.texts(table.names):
        for column, texts in zip(batch.schema.names, batch.columns, strict=True):
            guesses[column].show(texts, row)
        row += batch.num_rows
    schema = pa.schema([(column, guess.kind) for column, guess in guesses.items()])
    return schema, {column: guess.text_from for column, guess in guesses.items() if guess.text_from is not None}


def csv_header(stream: BinaryIO, name: str, columns: list[str] | None) -> list[str]:
    """The names of a CSV file's columns; reads its beginning alone."""
    return _Csv(stream, name, columns).names


def csv_batches(
    stream: BinaryIO, name: str, columns: list[str] | None, types: dict[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """Rows of a CSV file, with those columns of `types` that it has, cast to these types."""
    for batch in _Csv(stream, name, columns).texts(list(types)):
        arrays = [
            from_texts(texts, types[column]) for column, texts in zip(batch.schema.names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names) if arrays else batch


class _Csv:
    """A CSV file whose header was read: its column names, and where its rows begin."""

    def __init__(self, stream: BinaryIO, name: str, columns: list[str] | None) -> None:
        note(name, 0)
        head = _head(stream, name)
        if not head:
            raise UsageError(f"{name} is empty.", remedy="Write it again or leave it out.")
        self.name, self._lines, self._has_rows = name, 0, True
        self._stream = _Rejoined(head, stream)
        self.names = columns or self._header(head)

    def texts(self, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        """All values as text; missing values are null, a quoted empty string is an empty string."""
        if not self._has_rows:
            return
        named = set(wanted)
        chosen = [column for column in self.names if column in named]
        bad: list[Any] = []

        def refuse(row: Any) -> str:
            bad.append(row)
            return "error"

        try:
            reader = pyarrow.csv.open_csv(
                io.BufferedReader(self._stream, _BLOCK),
                # Only a single-threaded reader knows the number of a bad row.
                read_options=pyarrow.csv.ReadOptions(
                    column_names=self.names, skip_rows=self._lines, block_size=_BLOCK, use_threads=False
                ),
                parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
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
            raise _csv_error(error, self.name, bad) from error

    def _header(self, head: bytes) -> list[str]:
        text = head.decode("utf-8-sig", errors="surrogateescape")
        reader = csv.reader(io.StringIO(text, newline=""))
        try:
            names = next((row for row in reader if row), [])
            names = [column or f"Unnamed: {i}" for i, column in enumerate(names)]  # the names that pandas gives them
            "".join(names).encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{self.name} is not a CSV file in UTF-8.", remedy="Convert it to UTF-8.") from error
        except csv.Error as error:
            raise UsageError(
                f"{self.name}: a name in the first line is longer than {csv.field_size_limit():,} characters.",
                remedy="Check that the quotes of the first line are closed.",
            ) from error
        twice = sorted(column for column, times in Counter(names).items() if times > 1)
        if twice:
            said = column_shown(twice[0], names.index(twice[0]))
            raise UsageError(f"{self.name} has the column {said} twice.", remedy="Rename one of them.")
        self._lines = reader.line_num
        self._has_rows = len(head) >= _HEADER_BYTES or any(reader)
        return names


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


def _csv_error(error: pa.ArrowInvalid, name: str, bad: list[Any]) -> UsageError:
    """Replace Arrow's message, which quotes the row's text, because that may be sensitive."""
    if bad:
        row, found, wanted = bad[0].number, bad[0].actual_columns, bad[0].expected_columns
        return UsageError(
            f"{name}: row {row} of the file has {found} values, but there are {wanted} columns.",
            remedy="Correct the row; put a value that has a comma in double quotes.",
        )
    if "UTF8" in str(error):
        return UsageError(f"{name} is not UTF-8.", remedy="Convert it to UTF-8.")
    return UsageError(
        f"{name} cannot be read as CSV.", remedy="Check its quotes, and that no row is larger than 8 MiB."
    )


def json_schema(stream: BinaryIO, name: str) -> pa.Schema:
    """Column names and types of a JSON Lines file; UsageError if a column has two kinds of value."""
    types: dict[str, pa.DataType] = {}
    for first, chunk in _lines(stream, name):
        for at, field in enumerate(_parsed(chunk, name, first, None).schema):
            both = _json_common(types.get(field.name, pa.null()), plain(field.type))
            if both is None:
                said = column_shown(field.name, at)
                raise UsageError(
                    f"{name}: the column {said} is {types[field.name]} at first and {field.type} from about row"
                    f" {first}.",
                    remedy="Give it one type.",
                )
            types[field.name] = both
    return pa.schema(list(types.items()))


def json_start(stream: BinaryIO, name: str) -> pa.Schema:
    """Columns and types of the first rows of a JSON Lines file; reads its beginning alone."""
    first = next(_lines(stream, name), None)
    return pa.schema([]) if first is None else _parsed(first[1], name, first[0], None).schema


def json_batches(stream: BinaryIO, name: str, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """Rows of a JSON Lines file, with the columns in `types`, cast to these types."""
    schema = pa.schema(list(types.items()))
    for first, chunk in _lines(stream, name):
        table = _parsed(chunk, name, first, schema)
        yield from table.select(schema.names).combine_chunks().to_batches()


def _json_common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    # Arrow parses a text as a time if it looks like one; among other texts it is a text.
    kinds = {
        pa.types.is_timestamp(one) or pa.types.is_string(one),
        pa.types.is_timestamp(other) or pa.types.is_string(other),
    }
    return pa.string() if kinds == {True} and one != other else common(one, other)


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Pieces of whole lines, each with the row number of its first line; blank lines do not count."""
    first, rest = 0, b""
    while piece := stream.read(_BLOCK):
        block = rest + piece
        end = block.find(b"\n")
        if (len(block) if end < 0 else end) > _MOST_LINE_BYTES:
            raise UsageError(
                f"{name}: row {first} is larger than {_MOST_LINE_BYTES >> 20} MiB.",
                remedy="Write JSON Lines, one object a line, and put a larger value in a file of its own.",
            )
        chunk, newline, rest = block.rpartition(b"\n")
        if newline:
            yield first, chunk
            first += sum(1 for line in chunk.split(b"\n") if line.strip())
    if rest.strip():
        yield first, rest


def _parsed(chunk: bytes, name: str, first: int, schema: pa.Schema | None) -> pa.Table:
    if not chunk.strip():
        return pa.table({})
    note(name, first)
    unexpected = "infer" if schema is None else "ignore"
    try:
        check_nesting(chunk)  # Arrow's parser recurses in C++: deep nesting would end the process
    except ValueError as error:
        raise UsageError(
            f"{name}: from row {first} on, {text_of(error)}.", remedy="Write it flat, or as Parquet."
        ) from error
    try:
        return pyarrow.json.read_json(
            pa.BufferReader(chunk),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
    except pa.ArrowInvalid as error:
        raise _json_error(error, name, first) from error


def _json_error(error: pa.ArrowInvalid, name: str, first: int) -> UsageError:
    """As for CSV, without the values that Arrow quotes: only the kinds and the row's number."""
    text = str(error)
    row = text.rpartition(" in row ")[2]
    where = f"row {first + int(row)}" if row.isdigit() else f"a row from {first} on"
    if "changed from" in text and "Column()" not in text:
        what = text[text.index("Column(") : text.rindex(" in row ")]
        column = column_shown(what.removeprefix("Column(/").partition(")")[0])
        kinds = what.partition(" changed from ")[2]
        return UsageError(f"{name}: the column {column} changes from {kinds} in {where}.", remedy="Give it one type.")
    return UsageError(
        f"{name}: {where} is not a JSON object on a line of its own.", remedy="Write JSON Lines, one object a line."
    )


class _Rejoined(io.RawIOBase):
    """A stream from its beginning, although part of it was read already."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        super().__init__()
        self._head, self._read_rest = memoryview(head), rest.read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._head[: len(buffer)] if self._head else self._read_rest(len(buffer))
        self._head = self._head[len(piece) :] if self._head else self._head
        buffer[: len(piece)] = piece
        return len(piece)
