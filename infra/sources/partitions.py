"""Columns that only folders name (`fold=train/part-0.parquet`), as Spark and Hive write them: one value for a file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Sequence
from datetime import date
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.quoting import column_shown
from infra.sources.types import plain

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile("0|-?[1-9][0-9]*")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WITHOUT = "set hive_partitioning: false for this source, and folders' names give no columns"


def folder_columns(path: str, here: str) -> dict[str, str]:
    """The columns that the folders of a path name, and their values as text; UsageError if one is named twice."""
    values: dict[str, str] = {}
    for name, sign, value in (folder.partition("=") for folder in path.split("/")[:-1]):
        if sign and name:
            if _unescaped(name) in values:
                raise UsageError(
                    f"{here}.uri: two folders of {path} give the column {name}.", remedy=f"Rename one, or {_WITHOUT}."
                )
            values[_unescaped(name)] = _unescaped(value)
    return values


def refuse_partly_named(files: Sequence[SourceFile], here: str) -> None:
    """UsageError if the folders of some files of a source name a column, and those of others do not."""
    for file in files:
        for name in files[0].columns.keys() ^ file.columns.keys():
            having, other = (file, files[0]) if name in file.columns else (files[0], file)
            raise UsageError(
                f"{here}.uri: a folder of {having.uri} gives the column {column_shown(name)}, and no folder of"
                f" {other.uri} does.",
                remedy=f"Move the files so that each has the same folders, or {_WITHOUT}.",
            )


def with_column_types(files: list[SourceFile]) -> list[SourceFile]:
    """The files with one type for each column that their folders name: whole numbers, dates, or text."""
    texts: dict[str, set[str]] = {}
    for file in files:
        for name, text in file.columns.items() if is_partitioned(file) else ():
            texts.setdefault(name, set()).add(text)
    types = {name: _type(values - {_NO_VALUE}) for name, values in texts.items()}
    return [
        file.model_copy(update={"column_types": {name: types[name] for name in file.columns}})
        if is_partitioned(file)
        else file
        for file in files
    ]


def is_partitioned(file: SourceFile) -> bool:
    """Whether a file of rows has columns that its folders name; of `files` and `text`, a pattern gives the columns."""
    return bool(file.columns) and file.format not in ("files", "text")


def partition_schema(file: SourceFile) -> pa.Schema:
    """The columns that a file's folders name."""
    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in file.column_types.items()])


def partition_value(file: SourceFile, name: str, kind: pa.DataType) -> pa.Scalar:
    """The value that a file's folder gives a column, in a type that its text fits; else pa.ArrowInvalid."""
    return pa.scalar(None if file.columns[name] == _NO_VALUE else file.columns[name], pa.string()).cast(kind)


def with_partitions(batch: pa.RecordBatch, file: SourceFile, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of the file's own columns, with those of `schema` that its folders name.

    UsageError if the file has such a column, too, and another value in it. A row of JSON Lines may leave it out.
    """
    wanted, own = set(schema.names), set(batch.schema.names)
    for name in filter(wanted.__contains__, file.column_types):
        if name not in own:
            value = partition_value(file, name, schema.field(name).type)
            columns = [*batch.columns, pa.repeat(value, batch.num_rows)]
            batch = pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, name])
            continue
        at = batch.schema.get_field_index(name)
        column = batch.column(at).cast(plain(batch.column(at).type))
        try:
            value = partition_value(file, name, column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _disagreement(file, name) from error
        if file.format == "jsonl":
            column = pc.coalesce(column, value)
        same = pc.equal(column, value) if value.is_valid else pc.is_null(column)
        if pc.any(pc.invert(pc.fill_null(same, False))).as_py():
            raise _disagreement(file, name)
        batch = batch.set_column(at, name, column)
    return batch


def _disagreement(file: SourceFile, name: str) -> UsageError:
    return UsageError(
        f"{file.uri}: the file's own column {column_shown(name)} has other values than the folder's name says.",
        remedy=f"Correct the file or the folder's name; or {_WITHOUT}.",
    )


def _unescaped(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def _type(texts: Collection[str]) -> str:
    """The name of the type that holds these texts; a number with leading zeros is a text, such as a postal code."""
    kinds = {_type_of(text) for text in texts}
    return kinds.pop() if len(kinds) == 1 else "string"


def _type_of(text: str) -> str:
    if _WHOLE.fullmatch(text):
        return "int64" if -(2**63) <= int(text) < 2**63 else "string"
    with contextlib.suppress(ValueError):  # of a day that does not exist
        if _DATE.fullmatch(text) and date.fromisoformat(text):
            return "date32"
    return "string"
