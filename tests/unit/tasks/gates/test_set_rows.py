"""The rows of a set: in the order in which they are scored, however stored; units and slices; what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.errors import CorruptError, InsufficientEvidence, UsageError
from data_contracts.handoffs import Dataset
from data_contracts.pipeline_spec import SliceSpec
from infra.records.evaluations import TestRows
from infra.store import Store
from tasks.gates import set_rows
from tasks.gates.set_rows import SetRows, read_test_rows
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages.shard import shard
from tests.support.nights import shard_here
from tests.support.runs import make_run
from tests.support.sealed_rows import sealed
from tests.support.tiny import SPEC, write_project

ROWS = 40
TABLE = pa.table(
    {
        "part": ["test"] * ROWS,
        "id": list(range(ROWS)),
        "age": [None if n == 7 else 20 + n for n in range(ROWS)],
        "country": [["DE", "AT", "FR"][n % 3] for n in range(ROWS)],
        "customer": [None if n < 2 else n // 4 for n in range(ROWS)],
        "same": [5] * ROWS,
        "x": np.linspace(0, 1, ROWS),
    }
)


def run_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, store: Store | None = None, **sections: Mapping[str, Any]
) -> Run:
    """A run whose store has its datasets in a folder."""
    monkeypatch.setattr(set_rows, "local_split", lambda store, dataset, split: nullcontext(folder / dataset.ref.uri))
    return make_run(store, spec={**SPEC, "promote": {}, "shards": {"split": {"column": "part"}}, **sections})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return run_of(tmp_path, monkeypatch)


def read(run: Run, dataset: Dataset, split: str = "test", unit: str | None = None, **slices: Any) -> SetRows:
    return read_test_rows(run, dataset, split, unit, {name: SliceSpec(**one) for name, one in slices.items()})


def test_units_and_slices_follow_the_stored_order(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_rows, "_BLOCK_ROWS", 3)  # several blocks in a shard
    dataset = sealed(tmp_path, "a", {"train": TABLE, "test": TABLE}, shard_rows=8)
    slices: dict[str, Any] = {
        "old": {"column": "age", "min": 50},
        "young": {"column": "age", "max": 30},
        "abroad": {"where": "country != 'DE' and x < 0.5"},
    }
    found = read(run, dataset, unit="customer", **slices)
    assert (found.num_rows, np.flatnonzero(found.slices["old"]).tolist()) == (ROWS, list(range(30, ROWS)))
    assert np.flatnonzero(found.slices["young"]).tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert np.flatnonzero(found.slices["abroad"]).tolist() == [n for n in range(20) if n % 3]
    units = found.units
    groups = {frozenset(np.flatnonzero(units == one).tolist()) for one in np.unique(units)}
    alone = [{0}, {1}, {2, 3}]  # a row without a customer is a unit of its own
    assert groups == set(map(frozenset, [*alone, *({n, n + 1, n + 2, n + 3} for n in range(4, ROWS, 4))]))
    assert sorted(set(units.tolist())) == list(range(12))
    assert read(run, dataset).units is None


def test_the_rows_are_in_the_order_in_which_they_are_scored(run: Run, tmp_path: Path) -> None:
    """Position i of an evaluation's outcomes is the i-th row that the ordered loader gives."""
    from training.formats import Shards
    from training.loader import OrderedLoader, Split

    dataset = sealed(tmp_path, "a", {"test": TABLE}, shard_rows=7)
    loader = OrderedLoader(Split(Shards(tmp_path / dataset.ref.uri, dataset, "test"), ["id"], in_order=True), 5)
    scored = [n for batch in loader for n in batch[0].tolist()]
    found = read(run, dataset, odd={"where": "id / 2 == 0.5 or id == 3"}, high={"column": "id", "min": 30})
    assert [scored[n] for n in np.flatnonzero(found.slices["odd"])] == [1, 3]
    assert [scored[n] for n in np.flatnonzero(found.slices["high"])] == list(range(30, ROWS))


SAME = {
    "other order of rows": TABLE.take(pa.array(np.random.default_rng(0).permutation(ROWS))),
    "other names": TABLE.rename_columns(["part", "b", "c", "d", "e", "f", "g"]),
    "other order of columns": TABLE.select(["part", "x", "age", "id", "same", "customer", "country"]),
    "narrower numbers": TABLE.set_column(1, "id", TABLE["id"].cast(pa.int16())),
    "a split of another name": TABLE.set_column(0, "part", pa.array(["held-out"] * ROWS)),
    "rows twice": pa.concat_tables([TABLE, TABLE]),
}


@pytest.mark.parametrize("how", SAME)
def test_what_does_not_make_other_rows(run: Run, tmp_path: Path, how: str) -> None:
    first = read(run, sealed(tmp_path, "a", {"test": TABLE}, shard_rows=9)).rows
    assert read(run, sealed(tmp_path, "b", {"test": SAME[how]}, shard_rows=13)).rows.id == first.id


def test_other_rows_are_others(run: Run, tmp_path: Path) -> None:
    first = read(run, sealed(tmp_path, "a", {"test": TABLE})).rows
    fewer = read(run, sealed(tmp_path, "b", {"test": TABLE.slice(10)})).rows
    changed = read(run, sealed(tmp_path, "c", {"test": TABLE.set_column(6, "x", pa.array(np.ones(ROWS)))})).rows
    assert (fewer.covered_by(first), first.covered_by(fewer)) == (1, 0.75)
    assert changed.covered_by(first) == 1 / ROWS  # the last x is 1 anyway


def test_the_column_that_names_the_splits_alone_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SAME["a split of another name"]
    datasets = [sealed(tmp_path, name, {"test": rows}) for name, rows in (("a", TABLE), ("b", other))]
    run = run_of(tmp_path, monkeypatch, shards={"split": {"key": "id"}})
    assert len({read(run, one).rows.id for one in datasets}) == 2


def test_the_place_of_a_text_makes_no_other_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, monkeypatch, data={"source": {"uri": "*.txt", "format": "text", "pieces": {"bytes": 2048}}})
    texts = [pa.table({"document": [name], "text": ["Once upon a time"], "part": ["test"]}) for name in ("a.txt", "b")]
    first, again = (read(run, sealed(tmp_path, f"d{n}", {"test": one})).rows for n, one in enumerate(texts))
    assert first.id == again.id


@pytest.mark.parametrize(
    ("asked", "error", "sentence", "remedy"),
    [
        ({"unit": "custmer"}, UsageError,
         "evaluate.unit: the dataset keeps no column 'custmer'; did you mean customer?",
         "It has part, id, age, country, customer, same, x."),
        ({"s": {"column": "cuontry", "values": ["DE"]}}, UsageError,
         "evaluate.slices.s: the dataset keeps no column 'cuontry'; did you mean country?", "It has "),
        ({"s": {"where": "x > 0 and zzz > 1"}}, UsageError,
         "evaluate.slices.s: the dataset keeps no column 'zzz'.", "It has "),
        ({"s": {"column": "country", "min": 3}}, UsageError,
         "evaluate.slices.s: the condition compares texts with numbers", "Correct it"),
        ({"s": {"column": "age", "min": 500}}, InsufficientEvidence,
         "evaluate.slices.s: none of the 40 rows of test is in this slice", "Correct its condition"),
        ({"unit": "same"}, InsufficientEvidence, "evaluate.unit: all 40 rows of test have the same 'same'", "Name a"),
        ({"split": "tset"}, UsageError, "The dataset has no split 'tset'; it has train, test.", "Name one"),
    ],
)  # fmt: skip
def test_what_is_refused_in_a_sentence(
    run: Run, tmp_path: Path, asked: dict[str, Any], error: type[UsageError], sentence: str, remedy: str
) -> None:
    dataset = sealed(tmp_path, "a", {"train": TABLE, "test": TABLE})
    with pytest.raises(error) as refused:
        read(run, dataset, **asked)
    assert sentence in refused.value.message
    assert refused.value.remedy.startswith(remedy)


def test_a_sensitive_name_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, monkeypatch, data={"source": "rows.csv", "sensitive": ["customer"]})
    with pytest.raises(UsageError) as refused:
        read(run, sealed(tmp_path, "a", {"test": TABLE}), unit="custmer")
    assert "customer" not in str(refused.value)


def test_a_damaged_shard_is_named(run: Run, tmp_path: Path) -> None:
    dataset = sealed(tmp_path, "a", {"test": TABLE})
    path = tmp_path / dataset.ref.uri / "test-00002.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(CorruptError, match="test-00002.parquet"):
        read(run, dataset)


def test_a_sketch_made_in_pieces_is_the_same() -> None:
    digests = np.random.default_rng(2).integers(0, 30_000, 100_000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    digests = np.concatenate([digests, digests])  # also after the sample is full
    whole, pieces = TestRows.of(digests), TestRows.of(digests[:0])
    for start in range(0, len(digests), 999):
        pieces = pieces.with_more(digests[start : start + 999])
    assert (pieces.id, pieces.counts.tolist()) == (whole.id, whole.counts.tolist())


@pytest.mark.usefixtures("home")
def test_a_run_reads_its_dataset_without_torch(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as `plan` does."""
    shard_here(monkeypatch)
    spec = write_project(tmp_path / "tiny", {"store": "../store"})
    made = shard.find_or_make(open_run(read_spec(spec), recorded=False), None).handoff
    code = (
        "import sys; from tasks.run.run import open_run; from tasks.run.spec_check import read_spec; "
        "from tasks.gates.set_rows import read_test_rows; from data_contracts.handoffs import Dataset; "
        "from data_contracts.pipeline_spec import SliceSpec; "
        f"run = open_run(read_spec({str(spec)!r}), recorded=False); dataset = Dataset.from_json({made.to_json()!r}); "
        "found = read_test_rows(run, dataset, 'test', 'id', {'s': SliceSpec(where='a > b')}); "
        "print(found.num_rows, len(found.rows.digests), found.slices['s'].sum() > 0, "
        "*(one for one in ('torch', 'lightning') if one in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = made.rows("test")
    assert done.stdout.split() == [str(rows), str(rows), "True"]
