"""Writes the handwritten digits that scikit-learn ships (UCI, 1797 images of 8x8 grey levels) as Parquet.

`data/digits.parquet` is the true data; `data/digits_faulty.parquet` is a copy with faults planted at known rows, for
the contract to find. Run it again and the same bytes are there: `python prepare.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

DATA = Path(__file__).resolve().parent / "data"
PIXELS = [f"p{row}{column}" for row in range(8) for column in range(8)]

# Column → row number → the value planted there.
FAULTS: dict[str, dict[int, int | None]] = {
    "p34": {17: 99, 411: 255, 1203: -1},  # a grey level that the scanner cannot give
    "label": {5: 12, 700: 10},  # no digit
    "p77": {64: None, 65: None, 66: None, 1500: None},  # lost pixels
    "id": {901: 900},  # the same image's id twice
}


def true_digits() -> pa.Table:
    """One row per image: `id` (its number), 64 pixels `p00` to `p77` (row, column; 0 to 16), `label` (0 to 9)."""
    digits = load_digits()
    columns = {"id": pa.array(range(len(digits.target)), pa.int64())}
    columns |= {name: pa.array(digits.data[:, i].astype("int16")) for i, name in enumerate(PIXELS)}
    columns["label"] = pa.array(digits.target.astype("int64"))
    return pa.table(columns)


def with_faults(table: pa.Table) -> pa.Table:
    """A copy of `table` with `FAULTS` planted."""
    for name, faults in FAULTS.items():
        values = table[name].to_pylist()
        for row, value in faults.items():
            values[row] = value
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
    return table


def _write(table: pa.Table, path: Path) -> None:
    # Under another name first: a file that is there is whole.
    part = path.with_suffix(".part")
    pq.write_table(table, part, compression="zstd")
    os.replace(part, path)


def main() -> None:
    """Write both files."""
    DATA.mkdir(exist_ok=True)
    table = true_digits()
    _write(with_faults(table), DATA / "digits_faulty.parquet")
    _write(table, DATA / "digits.parquet")


if __name__ == "__main__":
    main()
