"""What the beginning of a file says of its columns and rows, without reading it whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.processes.this_process import note
from infra.sources.places import Places, chunks, decompressed, joined, stored_bytes
from infra.sources.read import file_facts
from infra.sources.resolve import CSV
from infra.sources.tables import CsvFile, csv_header, json_start

_SAMPLE_BYTES = 2**20


@dataclass(frozen=True)
class SniffedSchema:
    """The columns and rows of a file, as its beginning shows them.

    Attributes:
        names: columns; of JSON Lines, those of the first rows.
        types: of columns whose types a file states itself (Parquet).
        rows: where the file states the number; else None.
        row_bytes: estimate of the stored bytes of a row.
    """

    names: list[str]
    types: dict[str, pa.DataType]
    rows: int | None
    row_bytes: float


def sniff_schema(file: SourceFile, sources: list[SourceSpec], root: Path, places: Places) -> SniffedSchema:
    """Look at a file of rows (CSV, JSON Lines or Parquet).

    Raises: UsageError if it is gone or is not of its format; of a Parquet file the digest is checked, too.
    """
    if file.format == "parquet":
        facts = file_facts(file, sources, root)
        rows = sum(rows for rows, _ in facts.row_groups)
        types = {one.name: one.type for one in facts.schema if one.name not in file.columns}
        return SniffedSchema(facts.schema.names, types, rows, file.bytes / max(rows, 1))
    with _opened(file, places) as plain:
        head = plain.read(_SAMPLE_BYTES)
        csv, opened = file.format in CSV, joined(chain([head], chunks(plain)))
        names = csv_header(opened, CsvFile.of(file, sources)) if csv else json_start(opened, file.uri).names
    names += [name for name in file.columns if name not in names]
    lines = max(1, head.count(b"\n") - csv, head.count(b"\r") - 1)
    return SniffedSchema(names, {}, None, len(head) / lines)


def beginning(file: SourceFile, places: Places) -> bytes:
    """The first bytes of a file, decompressed."""
    note(file.uri, 0)
    with _opened(file, places) as plain:
        return bytes(plain.read(_SAMPLE_BYTES))


@contextlib.contextmanager
def _opened(file: SourceFile, places: Places) -> Iterator[BinaryIO]:
    # Not `stream`: it reads to the end, to compare the digest; every byte is read and compared later.
    with (
        contextlib.closing(stored_bytes(file.uri, places.of(file))) as stored,
        joined(chunks(stored)) as buffered,
        decompressed(buffered, file) as plain,
    ):
        yield plain
