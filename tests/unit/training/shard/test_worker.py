"""The shard worker as the flow runs it: a child process that reads, transforms and seals into a real store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import CorruptError, UsageError, UserCodeError
from data_contracts.handoffs import Dataset
from data_contracts.messages.raw_data import SHARD, ShardProgress, ShardRequest
from infra.child import run_child
from infra.files import file_digest
from infra.records.handoffs import read_handoff
from infra.store import open_store
from tests.support.shard_rows import shard_reader
from tests.support.tiny import own_modules
from training.formats.schema import read_schema
from training.shard.splitter import REQUIRED
from training.shard.worker import main

PROJECT = """
import pyarrow as pa

def double(batch, times):
    return pa.record_batch({"x": [x * times for x in batch["x"].to_pylist()]})

def fails(batch):
    return helper(batch)

def helper(batch):
    raise RuntimeError("row 7 is bad")

def nothing(batch):
    return None

def random(batch):
    import os
    return pa.record_batch({"x": [os.urandom(1) for _ in range(batch.num_rows)]})
"""


@pytest.fixture
def given(tmp_path):
    """A request for a CSV of 100 rows, and the store it writes to."""
    raw = tmp_path / "raw.csv"
    raw.write_text("x,name\n" + "".join(f"{n},row {n}\n" for n in range(100)))
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.py").write_text(textwrap.dedent(PROJECT))
    open_store(str(tmp_path / "store"))

    def request(*, store: str = "store", **changes):
        if store != "store":
            open_store(str(tmp_path / store))
        shards = {"split": {"key": "x"}, "target_size_bytes": 1024, **changes.pop("shards", {})}
        return {
            "store": {"uri": str(tmp_path / store)},
            "uri": "datasets/k-0",
            "key": "k",
            "files": [
                {"uri": str(raw), "bytes": raw.stat().st_size, "blake3": file_digest(raw), "format": "csv", "source": 0}
            ],
            "sources": [{"uri": "raw.csv"}],
            "root": str(tmp_path),
            "window": None,
            "window_column": None,
            "shards": shards,
            "project": str(project),
            "required_splits": list(REQUIRED),
            "settings": {"stage": "shard"},
            "provenance": {"actor": "a test"},
            **changes,
        }

    with own_modules():  # `main` called here imports the user's module; a child process would leave nothing behind
        yield request


def _run(request) -> Dataset:
    return main(ShardRequest.from_json(json.loads(json.dumps(request))), lambda report: None)


def _rows(request, dataset: Dataset, split: str) -> list:
    folder = open_store(request["store"]["uri"]).local(dataset.ref)
    tables = [shard_reader(dataset.format)(folder / shard.path, read_schema(folder)) for shard in dataset.splits[split]]
    return pa.concat_tables(tables).to_pylist()


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (1_000_000, "contracts/c-0/quarantine.parquet has more rows than the files that were read."),
        (None, "contracts/c-0/quarantine.parquet cannot be read: Parquet file size is 36 bytes"),
    ],
)
def test_a_forged_list_of_quarantined_rows_is_not_read(given, tmp_path, rows, sentence):
    request = given()
    planted = pa.BufferOutputStream()
    numbers = pa.array([0] * (rows or 0), pa.int64())  # takes a few bytes, whatever it holds
    pq.write_table(pa.table({"row": numbers, "file_number": numbers, "row_in_file": numbers}), planted)
    writer = open_store(request["store"]["uri"]).writer("contracts/c-0")
    stored = writer.put("quarantine.parquet", planted.getvalue().to_pybytes() if rows else b"PAR1" * 9)
    ref = writer.seal("contract", {}, {}, [stored])
    with pytest.raises(CorruptError, match=f"^{sentence}"):
        _run({**request, "quarantine": ref.to_json()})


@pytest.mark.parametrize("format_name", ["parquet", "tfrecord"])
def test_the_dataset_is_sealed_and_says_what_it_holds(given, format_name):
    request, told = given(shards={"format": format_name}), []
    dataset = run_child(SHARD, ShardRequest.from_json(request), on_report={ShardProgress: told.append})
    store = open_store(request["store"]["uri"])
    manifest = store.verify(dataset.ref)
    assert dataset.columns == {"x": "int64", "name": "string"}
    assert manifest.kind == "dataset"
    assert manifest.settings["stage"] == "shard"
    assert manifest.settings["sources"] == [request["files"][0]["blake3"]]
    assert manifest.settings["splits"] == {split: dataset.rows(split) for split in ("train", "val", "test")}
    assert [column["name"] for column in manifest.settings["schema"]["columns"]] == ["x", "name"]
    assert manifest.provenance == {"actor": "a test", "row_counts": {"read": 100}}
    assert read_handoff(store, dataset.ref, Dataset) == dataset
    rows = [row for split in dataset.splits for row in _rows(request, dataset, split)]
    assert sorted(row["x"] for row in rows) == list(range(100))
    assert [getattr(told[-1], name) for name in ("phase", "rows", "total", "share", "seconds_left")] == [
        "writing",
        100,
        100,
        1,
        0,
    ]


def test_the_id_does_not_depend_on_store_and_provenance(given):
    one = _run(given())
    two = _run(given(store="another", provenance={"actor": "somebody else", "finished": "later"}))
    assert one.ref.id == two.ref.id
    assert one.ref.seal != two.ref.seal
    assert one.splits == two.splits


@pytest.mark.apt("strace")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.sweep), 47], ids=["every call", "a sample"])
@pytest.mark.timeout(3600)
def test_work_killed_at_any_file_system_call_goes_on_to_the_same_dataset(given, tmp_path, step):
    request = tmp_path / "request.json"
    request.write_text(json.dumps(given(shards={"memory_bytes": 2**20})))
    # Folders of its own: the work looks at every file in them, and others write into the shared ones meanwhile.
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kill_sweep", str(request), str(step)],
        capture_output=True, text=True, cwd=Path(__file__).parents[4], check=False,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "TRAINWRIGHT_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{found}")
    assert found["calls"] > 100
    assert found["missed"] == []
    assert found["went_on_with_shards"] > 0


def test_a_transform_is_found_in_the_project_and_given_its_arguments(given):
    request = given(shards={"transform": {"call": "mine.double", "args": {"times": 3}}})
    dataset = _run(request)
    rows = [row["x"] for split in dataset.splits for row in _rows(request, dataset, split)]
    assert sorted(rows) == [3 * n for n in range(100)]


FAILURES = [
    ({"files": []}, UsageError, "There are no source files to shard"),
    ({"shards": {"split": {"key": "nope"}}}, UsageError, "the data has no column 'nope'; it has x, name"),
    ({"shards": {"transform": "mine.fails"}}, UserCodeError, "shards.transform .*RuntimeError: row 7 is bad"),
    ({"shards": {"transform": "mine.nothing"}}, UserCodeError, "returned a NoneType, not a pyarrow.RecordBatch"),
    ({"shards": {"transform": "mine.nobody"}}, UsageError, "mine.nobody was not found"),
    ({"required_splits": ["train", "holdout"]}, UsageError, "leaves no rows for 'holdout'"),
]


@pytest.mark.parametrize(("changes", "error", "sentence"), FAILURES)
def test_a_failure_is_one_sentence_and_seals_nothing(given, changes, error, sentence):
    request = given(**changes)
    with pytest.raises(error, match=sentence) as caught:
        _run(request)
    assert type(caught.value) is error
    assert open_store(request["store"]["uri"]).newest("datasets", "k") is None


@pytest.mark.parametrize(
    ("transform", "error", "sentence"),
    [
        ("mine.random", UserCodeError, "shards.transform gives other rows for datasets/k-0/"),
        (None, CorruptError, "datasets/k-0/train-0000.*, left by interrupted work, is not what"),
    ],
)
def test_what_interrupted_work_left_is_compared_and_not_trusted(given, tmp_path, transform, error, sentence):
    request = given(shards={"transform": transform})
    folder = tmp_path / "store" / "datasets" / "k-0"
    folder.mkdir(parents=True)
    (folder / "train-00000.parquet").write_bytes(b"an earlier draw")
    with pytest.raises(error, match=sentence):
        _run(request)
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "train-00009.parquet").write_bytes(b"a shard more")
    with pytest.raises(error, match=sentence):
        _run(request)
