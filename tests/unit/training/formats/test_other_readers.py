"""Other people's software reads our shards, and we read TensorFlow's; each in an environment of its own."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.shard_rows import shard_reader
from tests.support.splits import normalised
from tests.unit.training.formats import reference
from tests.unit.training.formats import rows as kinds
from training import formats

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]  # an environment is made on first use

ROWS = pa.table(
    {
        "label": pa.array([3, -1, None]),
        "score": pa.array([0.5, None, float("-inf")], pa.float32()),
        "text": ["é", "", None],
        "image": pa.FixedSizeListArray.from_arrays(pa.array(range(12), pa.uint8()), 4),
        "tokens": [[1, 2, 300], [], [7]],
        "at": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5, 6), None, datetime.datetime(1969, 1, 1)]),
    }
)


@pytest.fixture
def ask(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs code with paths as its arguments in one of the benchmarks' environments; what it printed last, as JSON."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import common

    def run(environment: str, code: str, *paths: Path) -> Any:
        done = subprocess.run([common.environment(environment), "-c", code, *paths], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def _plain(value: Any) -> Any:
    """A value as the scripts below show it."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, datetime.datetime) else value


TENSORFLOW = """
import json, sys, tensorflow as tf
rows = []
with tf.io.TFRecordWriter(sys.argv[2]) as writer:
    for record in tf.data.TFRecordDataset(sys.argv[1]):
        features = dict(tf.train.Example.FromString(record.numpy()).features.feature)
        lists = {name: getattr(feature, feature.WhichOneof("kind")).value for name, feature in features.items()}
        rows.append({name: [one.hex() if isinstance(one, bytes) else one for one in values]
                     for name, values in lists.items()})
        example = tf.train.Example()
        for name in reversed(list(features)):
            example.features.feature[name].CopyFrom(features[name])
        writer.write(example.SerializeToString())
print(json.dumps(rows))
"""


@pytest.mark.sweep  # its environment is 2 GB; `reference.py` reads what TensorFlow reads
def test_tensorflow_reads_ours_and_we_read_tensorflows(ask, tmp_path):
    table = normalised(kinds.every_kind())
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    formats.write_shard("tfrecord", table, ours)
    columns = {name: reference.plain(table[name]) for name in table.column_names}
    expected = [
        {name: [_plain(one) for one in rows[row]] for name, rows in columns.items() if rows[row] is not None}
        for row in range(table.num_rows)
    ]
    assert ask("tensorflow", TENSORFLOW, ours, theirs) == expected
    assert ours.read_bytes() != theirs.read_bytes()
    assert shard_reader("tfrecord")(theirs, table.schema).equals(table)


TFRECORD = """
import json, sys
from tfrecord.reader import tfrecord_loader
rows = [{name: list(value) for name, value in row.items()} for row in tfrecord_loader(sys.argv[1], None)]
print(json.dumps(rows, default=lambda number: number.item()))
"""


def test_the_package_tfrecord_reads_ours(ask, tmp_path):
    table = normalised(ROWS.select(["label", "score", "image"]).slice(0, 1))
    formats.write_shard("tfrecord", table, tmp_path / "ours")
    assert ask("tfrecord", TFRECORD, tmp_path / "ours") == [{"label": [3], "score": [0.5], "image": [0, 1, 2, 3]}]


DUCKDB = """
import duckdb, json, sys
found = duckdb.sql("SELECT * FROM read_parquet(?)", params=[sys.argv[1]])
rows = [dict(zip(found.columns, row)) for row in found.fetchall()]
"""
POLARS = """
import json, polars, sys
rows = polars.read_parquet(sys.argv[1]).to_dicts()
"""
SHOWN = """
def plain(one):
    return one.hex() if isinstance(one, bytes) else one.isoformat() if hasattr(one, "isoformat") else one
print(json.dumps([{name: plain(one) for name, one in row.items()} for row in rows]))
"""


@pytest.mark.parametrize("reader", [DUCKDB, POLARS], ids=["duckdb", "polars"])
def test_other_engines_read_our_parquet(reader, ask, tmp_path):
    table = normalised(ROWS)
    formats.write_shard("parquet", table, tmp_path / "ours.parquet")
    expected = [{name: _plain(one) for name, one in row.items()} for row in table.to_pylist()]
    assert ask("readers", reader + SHOWN, tmp_path / "ours.parquet") == expected
