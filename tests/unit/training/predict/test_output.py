"""Both formats hold the same rows, and their bytes do not depend on how the rows were divided."""

from __future__ import annotations

import datetime
import itertools
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import UsageError
from training.predict import output
from training.predict.output import join, names_in, refuse_columns, refuse_twice

ROWS = pa.RecordBatch.from_pydict(
    {
        "row": pa.array(range(7), pa.int64()),
        "text": ['a"b', None, "", "é\n", "x,y", "\x1b", "null"],
        "when": pa.array([datetime.date(2026, 1, 2)] * 6 + [None], pa.date32()),
        "score": pa.array([0.1, math.nan, math.inf, -0.0, None, 1e-30, 2.0], pa.float32()),
        "sure": [True, False, None, True, True, True, False],
        "vector": pa.array([[1, 2]] * 6 + [None], pa.list_(pa.int8(), 2)),
    }
)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_the_bytes_do_not_depend_on_the_parts(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "GROUP_ROWS", 3)
    files = []
    for number, cuts in enumerate(([0, 7], [0, 1, 2, 3, 4, 5, 6, 7], [0, 4, 7])):
        parts = [ROWS.slice(one, other - one) for one, other in itertools.pairwise(cuts)]
        path = tmp_path / f"{number}.{suffix}"
        join(parts, ROWS.schema, path, path)
        files.append(path.read_bytes())
    assert len(set(files)) == 1


def test_each_format_reads_back(tmp_path: Path) -> None:
    for suffix in ("parquet", "csv"):
        refuse_columns(ROWS.schema.remove(5), tmp_path / f"x.{suffix}")
        join([ROWS], ROWS.schema, tmp_path / f"x.{suffix}", tmp_path / f"x.{suffix}")
    assert str(pq.read_table(tmp_path / "x.parquet").to_pylist()) == str(ROWS.to_pylist())
    table = pyarrow.csv.read_csv(tmp_path / "x.csv", parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
    assert (
        table.column_names
        == names_in(ROWS.schema, tmp_path / "x.csv")
        == [*ROWS.schema.names[:5], "vector_0", "vector_1"]
    )
    assert table.column("text").to_pylist()[0] == 'a"b'


VECTORS = pa.schema([("row", pa.int64()), ("logits_1", pa.string()), ("logits", pa.list_(pa.float32(), 2))])
REFUSED: list[tuple[pa.Schema, str, str]] = [
    *(
        (pa.schema([("x", kind)]), "x.csv", "cannot hold")
        for kind in (pa.binary(), pa.list_(pa.string()), pa.struct([("x", pa.int8())]))
    ),
    (VECTORS, "predictions.CSV", "Two columns of the output would be called logits_1"),
    (VECTORS, "a", "not clear from its name"),
    (VECTORS, "a.jsonl", "not clear from its name"),
]


@pytest.mark.parametrize(("schema", "name", "sentence"), REFUSED)
def test_what_a_file_cannot_hold_is_refused(schema: pa.Schema, name: str, sentence: str) -> None:
    refuse_columns(schema, Path("x.parquet"))
    with pytest.raises(UsageError, match=sentence):
        refuse_columns(schema, Path(name))


@pytest.mark.parametrize("twice", ["row", "prediction"])
def test_two_columns_of_one_name_are_refused(twice: str) -> None:
    refuse_twice(["row", "id", "prediction"])
    with pytest.raises(UsageError, match=f"would be called {twice}"):
        refuse_twice(["row", "prediction", twice])
