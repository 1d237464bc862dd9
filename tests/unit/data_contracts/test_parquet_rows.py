"""The rows of a Parquet file whose footer understates their total."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.arrow_rows import num_rows

# A field of 8 bytes after the one before it, in Thrift's compact form: 1,000,000; and 10, in as many bytes.
MANY, FEW = b"\x16\x80\x89\x7a", b"\x16\x94\x80\x00"


def test_rows_are_counted_that_the_total_conceals() -> None:
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"row": pa.array([0] * 1_000_000)}), written, row_group_size=1_000_000, store_schema=False)
    data = written.getvalue().to_pybytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    forged = data[:footer] + data[footer:].replace(MANY, FEW, 1)
    with pq.ParquetFile(pa.BufferReader(forged)) as file:
        assert file.metadata.num_rows == 10
        assert num_rows(file) == file.read().num_rows == 1_000_000
