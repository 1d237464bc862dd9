"""The file of the rows that a contract set aside: written beside its report, and read again when rows are sharded.

Each row says where it came from and which expectations it broke, with its values but those of sensitive columns. A
row's place in its file counts rows before the window's filter, so that any reader of a part of the file finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.contract.findings import Judged
from data_contracts.contract.row_numbers import Numbers
from data_contracts.handoffs import Ref
from data_contracts.messages.raw_data import ContractRequest
from data_contracts.quoting import text_of
from infra.contract.row_places import Located, named
from infra.files import num_rows
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
