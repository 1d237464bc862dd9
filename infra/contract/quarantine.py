"""The file of the rows that a contract set aside: written beside its report, and read again when rows are sharded.

Each row says where it came from and which expectations it broke, with its values but those of sensitive columns. Where
a row is, its file and its number in that file, is found from its number over all files. A row's place in its file
counts rows before the window's filter, so that any reader of a part of the file finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.arrow_rows import Numbers, among, num_rows
from data_contracts.contract.findings import Judged
from data_contracts.handoffs import Failure, Ref, RowPlace, SourceFile
from data_contracts.messages.raw_data import ContractOutcome, ContractRequest
from data_contracts.quoting import text_of
from infra.sources import Selection, Window, file_facts, in_window, merged_schema, read_batches
from infra.store import Store
from infra.store.records import corrupt

FILE = "quarantine.parquet"
_OURS = [
    pa.field("row", pa.int64()),
    pa.field("file", pa.string()),
    pa.field("file_number", pa.int64()),
    pa.field("row_in_file", pa.int64()),
    pa.field("broken", pa.list_(pa.string())),
]


@dataclass(frozen=True)
class LeftOut:
    """The rows that are left out of a dataset, in their order.

    Attributes:
        rows: their numbers over all files, after the window's filter.
        files: the position of each one's file among all files.
        rows_in_file: their numbers in their files, before the window's filter.
    """

    rows: Numbers
    files: Numbers
    rows_in_file: Numbers

    def of(self, file: int) -> Numbers:
        """The numbers in a file of the rows that are left out of it, sorted."""
        start, stop = np.searchsorted(self.files, [file, file + 1])
        return self.rows_in_file[start:stop]


def read_left_out(store: Store, report: Ref, most_rows: int) -> LeftOut:
    """The rows that a contract report set aside; CorruptError if the file was changed or has more than `most_rows`."""
    store.verify(report)
    path = f"{report.uri}/{FILE}"
    try:
        with pq.ParquetFile(store.local(report) / FILE) as file:
            if num_rows(file) > most_rows:
                raise corrupt(path, "has more rows than the files that were read")
            table = file.read(columns=["row", "file_number", "row_in_file"])
        rows, files, rows_in_file = (column.to_numpy() for column in table.columns)
    except (ValueError, OSError) as error:  # pyarrow's, too
        raise corrupt(path, f"cannot be read: {text_of(error)}") from error
    return LeftOut(rows, files, rows_in_file)


def write_quarantine(path: Path, request: ContractRequest, judged: Judged) -> None:
    """Write the rows that were set aside, which are read once more from their files."""
    reader = Located(request)
    shown = [one for one in reader.schema if one.name not in request.sensitive and _storable(one.type)]
    fields = [*_OURS, *([pa.field("data", pa.struct(shown))] if shown else [])]
    names = [one.name for one in shown]
    with pq.ParquetWriter(path, pa.schema(fields), compression="zstd") as writer:
        for numbers, file, places, batch in reader.rows(judged.rows, names):
            uris = [named(request.files[file], Path(request.root))] * len(numbers)
            of_file = pa.array(np.full(len(numbers), file, np.int64))
            columns = [pa.array(numbers), pa.array(uris), of_file, pa.array(places), _broken(numbers, judged.broken)]
            if shown:
                columns.append(pa.StructArray.from_arrays([batch.column(name) for name in names], fields=shown))
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))


def _broken(numbers: Numbers, labels: list[tuple[str, Numbers]]) -> pa.Array:
    """For each row, the expectations that it broke."""
    members = [np.isin(numbers, rows, assume_unique=True) for _, rows in labels]
    names = [
        [name for (name, _), member in zip(labels, members, strict=True) if member[at]] for at in range(len(numbers))
    ]
    return pa.array(names, pa.list_(pa.string()))


def _storable(kind: pa.DataType) -> bool:
    """Whether Parquet can hold a type: it has no struct without fields."""
    if pa.types.is_struct(kind) and not kind.num_fields:
        return False
    return all(_storable(kind.field(index).type) for index in range(kind.num_fields))


def with_places(request: ContractRequest, outcome: ContractOutcome) -> ContractOutcome:
    """The outcome with the file, and the number in it, of each row that its failures name.

    The files are read once more as far as the last of these rows; of Parquet only the row groups that hold them.
    """
    quarantine = outcome.quarantine
    failures = [*outcome.failures, *(quarantine.broken if quarantine is not None else [])]
    wanted = np.unique(np.array([row for one in failures for row in one.row_numbers], np.int64))
    if not len(wanted):
        return outcome
    places = _places(request, wanted)
    changed: dict[str, object] = {"failures": [_placed(one, places) for one in outcome.failures]}
    if quarantine is not None:
        broken = [_placed(one, places) for one in quarantine.broken]
        changed["quarantine"] = quarantine.model_copy(update={"broken": broken})
    return outcome.model_copy(update=changed)


def _places(request: ContractRequest, row_numbers: Numbers) -> dict[int, RowPlace]:
    reader, root = Located(request), Path(request.root)
    places: dict[int, RowPlace] = {}
    for numbers, file, rows_in_file, _ in reader.rows(row_numbers, reader.schema.names[:1]):
        name = named(request.files[file], root)
        # Elsewhere only the file's own name, so that a report is the same wherever the data lies.
        name = name if not Path(name).is_absolute() else Path(name).name
        for number, row in zip(numbers.tolist(), rows_in_file.tolist(), strict=True):
            places[number] = RowPlace(file=name, row=row)
        if len(places) == len(row_numbers):
            break
    return places


def _placed(failure: Failure, places: Mapping[int, RowPlace]) -> Failure:
    if not all(row in places for row in failure.row_numbers):
        return failure
    return failure.model_copy(update={"places": [places[row] for row in failure.row_numbers]})


class Located:
    """Reads rows by their numbers over all files, and says where they are."""

    def __init__(self, request: ContractRequest) -> None:
        self._request, self._root = request, Path(request.root)
        self._window = Window.from_iso(*request.window) if request.window and request.window_column else None
        self._facts = [file_facts(file, request.sources, self._root) for file in request.files]
        self.schema = merged_schema(request.files, self._facts)

    def rows(
        self, row_numbers: Numbers, columns: Sequence[str]
    ) -> Iterator[tuple[Numbers, int, Numbers, pa.RecordBatch]]:
        """Rows in order: their numbers, the position of their file, their numbers in it, and their values."""
        at = 0
        for file in range(len(self._request.files)):
            sizes = self._sizes(file)
            in_file = (
                row_numbers[np.searchsorted(row_numbers, at) :] if sizes is None else among(row_numbers, at, sum(sizes))
            )
            end = None if sizes is None else at + sum(sizes)
            if len(in_file):
                groups, place = _groups(sizes, in_file) if sizes and len(sizes) > 1 else (None, 0)
                at += place
                for batch in self._read(file, columns, groups):
                    inside = self._inside(batch)
                    here = among(row_numbers, at, len(inside))
                    if len(here):
                        yield here + at, file, inside[here] + place, batch.take(pa.array(inside[here]))
                    at, place = at + len(inside), place + batch.num_rows
            at = at if end is None else end

    def _sizes(self, file: int) -> list[int] | None:
        """The rows of a file, by row group, if they are known without reading it."""
        if self._window is not None:
            return None
        if self._request.files[file].format == "files":
            return [1]
        return [rows for rows, _ in self._facts[file].row_groups] or None

    def _read(self, file: int, columns: Sequence[str], groups: tuple[int, int] | None) -> Iterator[pa.RecordBatch]:
        named = [*columns, *([self._request.window_column] if self._window is not None else [])]
        selection = Selection(
            columns=list(dict.fromkeys(name for name in named if name)) or self.schema.names[:1],
            schema=self.schema,
            row_groups=groups,
            stamp=self._facts[file].stamp,
        )
        return read_batches([self._request.files[file]], self._request.sources, root=self._root, selection=selection)

    def _inside(self, batch: pa.RecordBatch) -> Numbers:
        """The rows of a batch that lie in the window."""
        if self._window is None or self._request.window_column is None:
            return np.arange(batch.num_rows)
        return np.flatnonzero(
            in_window(batch, self._window, self._request.window_column).to_numpy(zero_copy_only=False)
        )


def _groups(sizes: list[int], row_numbers: Numbers) -> tuple[tuple[int, int], int]:
    """The row groups that hold these rows of a file, START and STOP, and the number of the first row in them."""
    ends = np.cumsum(sizes)
    start, last = np.searchsorted(ends, row_numbers[[0, -1]], "right").tolist()
    return (start, last + 1), int(ends[start] - sizes[start])


def named(file: SourceFile, root: Path) -> str:
    """A file's path from the spec's folder, so that it is the same on every machine; elsewhere its address."""
    return str(Path(file.uri).relative_to(root)) if Path(file.uri).is_relative_to(root) else file.uri
