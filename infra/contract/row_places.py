"""Where rows are: the file of a row, and its number in that file, from its number over all files.

A row's number in its file counts rows before the window's filter, so that any reader of the file finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_contracts.contract.row_numbers import Numbers, among
from data_contracts.handoffs import Failure, RowPlace, SourceFile
from data_contracts.messages.raw_data import ContractOutcome, ContractRequest
from infra.sources import Selection, Window, file_facts, in_window, merged_schema, read_batches


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


def _places(request: ContractRequest, wanted: Numbers) -> dict[int, RowPlace]:
    reader, root = Located(request), Path(request.root)
    found: dict[int, RowPlace] = {}
    for numbers, file, rows_in_file, _ in reader.rows(wanted, reader.schema.names[:1]):
        name = named(request.files[file], root)
        # Elsewhere only the file's own name, so that a report is the same wherever the data lies.
        name = name if not Path(name).is_absolute() else Path(name).name
        for number, row in zip(numbers.tolist(), rows_in_file.tolist(), strict=True):
            found[number] = RowPlace(file=name, row=row)
        if len(found) == len(wanted):
            break
    return found


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

    def rows(self, wanted: Numbers, columns: Sequence[str]) -> Iterator[tuple[Numbers, int, Numbers, pa.RecordBatch]]:
        """Rows in order: their numbers, the position of their file, their numbers in it, and their values."""
        at = 0
        for file in range(len(self._request.files)):
            sizes = self._sizes(file)
            mine = wanted[np.searchsorted(wanted, at) :] if sizes is None else among(wanted, at, sum(sizes))
            end = None if sizes is None else at + sum(sizes)
            if len(mine):
                groups, place = _groups(sizes, mine) if sizes and len(sizes) > 1 else (None, 0)
                at += place
                for batch in self._read(file, columns, groups):
                    inside = self._inside(batch)
                    here = among(wanted, at, len(inside))
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


def _groups(sizes: list[int], mine: Numbers) -> tuple[tuple[int, int], int]:
    """The row groups that hold these rows of a file, START and STOP, and the number of the first row in them."""
    ends = np.cumsum(sizes)
    start, last = np.searchsorted(ends, mine[[0, -1]], "right").tolist()
    return (start, last + 1), int(ends[start] - sizes[start])


def named(file: SourceFile, root: Path) -> str:
    """A file's path from the spec's folder, so that it is the same on every machine; elsewhere its address."""
    return str(Path(file.uri).relative_to(root)) if Path(file.uri).is_relative_to(root) else file.uri
