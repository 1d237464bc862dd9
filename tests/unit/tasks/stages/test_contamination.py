"""Rows in two splits: rejected, dropped or told; across evaluation sets and mixtures, and on a reused dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from data_contracts.errors import ContractRejected, UsageError
from data_contracts.handoffs import Dataset
from data_contracts.messages.raw_data import ContaminationReport
from infra.contract.file_statistics import read_profile
from infra.records.handoffs import read_handoff
from infra.store import open_store
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import shard as stage
from tasks.stages.shard import comparison, dataset_key, shard
from tasks.stages.validate import validate
from tests.support.files import write_files
from tests.support.shard_rows import rows_in
from tests.support.tiny import SPEC, write_project
from training.contamination import worker

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.warm]
# part, id, a, b, c, label: 20 rows of train, 6 of val, 8 of test, all different but for the planted ones.
ROWS = [("train", i, i / 100, 0.5, -0.5, i % 2) for i in range(20)]
ROWS += [("val", i, i / 100, 0.5, -0.5, 0) for i in range(20, 26)]
ROWS += [("test", i, i / 100, 0.5, -0.5, 0) for i in range(26, 34)]
IN_TEST = [("test", 100, 0.04, 0.5, -0.5, 0), ("test", 101, 0.06, 0.5, -0.5, 1)]  # the second with another label
IN_VAL = [("test", 102, 0.21, 0.5, -0.5, 0)]


def write(path: Path, rows: list[tuple[Any, ...]]) -> None:
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("part,id,a,b,c,label\n" + "\n".join(lines) + "\n")


@pytest.fixture
def here(here: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Shard and compare in this process, which is quicker; the list says how often it was compared."""
    compared: list[str] = []

    def run_here(run: Run, child: Any, request: Any) -> ContaminationReport:
        compared.append(request.uri)
        return worker.main(type(request).from_json(json.loads(json.dumps(request.to_json()))), lambda report: None)

    monkeypatch.setattr(stage, "run_here", run_here)
    return compared


def opened(folder: Path, asked: Any, rows: list[tuple[Any, ...]] | None = None, **sections: Any) -> Run:
    """A run of the tiny pipeline, split by the column `part`."""
    section = {"suite": "suite.json", **({} if asked is None else {"contamination": asked})}
    shards = {"split": {"column": "part"}, "target_size_bytes": 1024}
    spec = write_project(folder, {"contract": section, "shards": shards, "store": "../store", **sections})
    write(folder / "rows.csv", ROWS + IN_TEST + IN_VAL if rows is None else rows)
    return open_run(read_spec(spec), recorded=False)


def ids(run: Run, dataset: Dataset, split: str) -> set[int]:
    return {row["id"] for row in rows_in(run.store, dataset, split)}


def test_a_row_of_train_in_test_rejects_the_split_and_is_named(tmp_path: Path) -> None:
    """In a process of its own, as in a run."""
    run = opened(tmp_path / "tiny", {"on_found": "reject", "ignore": ["id"]})
    done = shard.find_or_make(run, None)
    assert isinstance(done.error, ContractRejected)
    assert "2 rows of test are also in train, 1 with another label (row " in done.error.message
    assert "1 row of test is also in val" in done.error.message
    assert "0.04" not in done.error.message
    found = shard.stored(run, None)  # as `plan` and a later run find it
    assert found.error.message == done.error.message
    report = read_handoff(run.store, comparison(run), ContaminationReport)
    assert (report.columns, report.label) == (["a", "b", "c"], ["label"])
    assert report.rows == {"train": 20, "val": 6, "test": 11}
    assert (report.conflicts.groups, report.conflicts.rows) == (1, 2)


def test_dropped_copies_are_counted_and_the_rest_stays_where_it_is(tmp_path: Path, here: list[str]) -> None:
    plain = opened(tmp_path / "tiny", None)
    before = shard.find_or_make(plain, None)
    assert shard.stored(plain, None).handoff == before.handoff
    run = opened(tmp_path / "tiny", {"on_found": "drop", "ignore": ["id"]})
    assert dataset_key(run) == dataset_key(plain)
    lacking = shard.stored(run, None)
    assert lacking.lacks == "its rows are not compared with those of other splits yet"
    done = shard.find_or_make(run, None)
    dataset = done.handoff
    assert (done.status, done.error) == ("ran", None)
    assert done.sentence.endswith(
        "; left out: 2 rows of train, 1 row of val; without them train 18 (52.9%), val 5 (14.7%), test 11 (32.4%) rows"
    )
    assert ids(run, dataset, "train") == set(range(20)) - {4, 6}
    assert ids(run, dataset, "val") == set(range(20, 26)) - {21}
    assert dataset.splits["test"] == before.handoff.splits["test"]
    assert dataset.dropped_rows == {"contamination": 3}
    again = shard.find_or_make(run, None)
    assert (again.status, again.handoff, again.reused_from) == ("reused", dataset, dataset.ref.uri)
    assert len(here) == 1
    run.store.verify(dataset.ref)
    names = [parent["uri"] for parent in run.store.manifest(dataset.ref).provenance["parents"]]
    assert names == [before.handoff.ref.uri]


@pytest.mark.parametrize("name", ["handoff.json", "val-00099.parquet"])
def test_what_another_process_is_writing_is_neither_replaced_nor_sealed(
    tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    drafts: list[str] = []

    def run_here(run: Run, child: Any, request: Any) -> ContaminationReport:
        for uri in (request.uri, request.dataset_uri):
            drafts.append(f"{uri}/{name}")
            run.store.writer(uri).put(name, b"of another process")
        return worker.main(request, lambda report: None)

    monkeypatch.setattr(stage, "run_here", run_here)
    run = opened(tmp_path / "tiny", {"on_found": "drop", "ignore": ["id"]})
    done = shard.find_or_make(run, None)
    assert done.handoff.ref.uri.endswith("-1")
    assert shard.stored(run, None).handoff == done.handoff
    assert [run.store.read(draft) for draft in drafts] == [b"of another process"] * 2


def test_without_copies_the_dataset_stays_and_a_warning_lets_all_pass(tmp_path: Path, here: list[str]) -> None:
    run = opened(tmp_path / "clean", {"on_found": "drop", "ignore": ["id"]}, ROWS)
    done = shard.find_or_make(run, None)
    assert done.sentence.endswith("; no row is in two splits")
    assert done.handoff.dropped_rows == {}
    run = opened(tmp_path / "tiny", {"on_found": "warn", "columns": ["a", "b", "c"]})
    done = shard.find_or_make(run, None)
    assert done.error is None
    assert ids(run, done.handoff, "train") == set(range(20))
    assert "2 rows of test are also in train" in done.sentence
    # With all columns compared but the key, an id of its own keeps rows apart: the sentence says so.
    done = shard.find_or_make(opened(tmp_path / "tiny", "reject"), None)
    assert done.error is None
    assert (
        "; no row is in two splits, but each row has its own value in the column 'id'; without it "
        "(contract.contamination.ignore), 2 rows of test are also in train, 1 with another label (row " in done.sentence
    )
    assert "; 1 row of test is also in val (row " in done.sentence


def test_an_index_is_no_part_of_a_row(tmp_path: Path, here: list[str]) -> None:
    """Whether pandas hid it in a Parquet file or wrote it as a column without a name into a CSV."""
    frame = pd.DataFrame(ROWS + IN_TEST + IN_VAL, columns=["part", "id", "a", "b", "c", "label"]).drop(columns="id")
    frame = frame[frame["a"] != 0.01]  # so that its index has a gap, and is stored
    for name, write_frame in (("rows.parquet", pd.DataFrame.to_parquet), ("rows2.csv", pd.DataFrame.to_csv)):
        (tmp_path / "tiny").mkdir(exist_ok=True)
        write_frame(frame, tmp_path / "tiny" / name)
        train = {**SPEC["train"], "batch": [["a", "b", "c"], "label"]}
        run = opened(tmp_path / "tiny", "reject", data={"source": name}, train=train)
        done = shard.find_or_make(run, None)
        assert isinstance(done.error, ContractRejected)
        assert "2 rows of test are also in train" in done.error.message
        assert read_handoff(run.store, comparison(run), ContaminationReport).columns == ["a", "b", "c"]


def test_labels_that_differ_within_a_split_reject_if_the_spec_says_so(tmp_path: Path, here: list[str]) -> None:
    rows = [*ROWS, ("train", 50, 0.04, 0.5, -0.5, 1)]
    warned = shard.find_or_make(opened(tmp_path / "tiny", {"ignore": ["id"]}, rows), None)
    assert warned.error is None
    assert "2 rows share their columns with a row of another label" in warned.sentence
    run = opened(tmp_path / "tiny", {"ignore": ["id"], "on_conflict": "reject"}, rows)
    error = shard.find_or_make(run, None).error
    assert isinstance(error, ContractRejected)
    assert "Correct the labels" in error.remedy


def test_evaluation_sets_and_mixed_datasets_are_compared_too(tmp_path: Path, here: list[str]) -> None:
    other = opened(tmp_path / "other", None, [(*row[:2], row[2] + 0.5, *row[3:]) for row in ROWS], name="other")
    mixed = shard.find_or_make(other, None).handoff
    loader = {"mixture": {"datasets": {"more": mixed.ref.uri}, "weights": {"this": 1, "more": 1}}}
    folder = tmp_path / "tiny"
    folder.mkdir()
    # The first is row 1 of train, the second row 3 of the other dataset's train.
    write(folder / "hard.csv", [("test", 1, 0.01, 0.5, -0.5, 1), ("test", 9, 0.53, 0.5, -0.5, 1)])
    evaluate = {**SPEC["evaluate"], "sets": {"hard": {"source": "hard.csv"}, "last": {"split": "val"}}}
    sections = {"train": {**SPEC["train"], "loader": loader}, "evaluate": evaluate}
    run = opened(folder, {"on_found": "drop", "ignore": ["id"]}, ROWS, **sections)
    error = shard.find_or_make(run, None).error
    assert isinstance(error, ContractRejected)
    assert "1 row of evaluate.sets.hard is also in train (row" in error.message
    assert "1 row of evaluate.sets.hard is also in train of more (row" in error.message
    assert error.remedy.startswith("Rows of train of more cannot be dropped here")
    report = read_handoff(run.store, comparison(run), ContaminationReport)
    assert report.rows == {"train": 20, "val": 6, "test": 8, "train of more": 20, "evaluate.sets.hard": 2}
    assert [(one.earlier, one.later) for one in report.overlaps] == [
        ("train", "evaluate.sets.hard"),
        ("train of more", "evaluate.sets.hard"),
    ]


def test_a_long_comparison_reports_that_it_goes_on(
    tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "REPORT_S", 0)
    reports: list[int] = []
    compare = lambda run, child, request: worker.main(request, lambda report: reports.append(report.done))  # noqa: E731
    monkeypatch.setattr(stage, "run_here", compare)
    shard.find_or_make(opened(tmp_path / "tiny", {"on_found": "drop", "ignore": ["id"]}), None)
    assert reports == list(range(1, len(reports) + 1))
    assert len(reports) > 5  # a block of each shard, the records, and the shards of which rows are dropped


WRONG = {
    "a column that is not there": ({"columns": ["a", "bb"]}, "the dataset has no column|train has no column 'bb'"),
    "an ignored column that is not there": ({"ignore": ["idd"]}, "ignore: the dataset has no column 'idd'; did you"),
    "a text column that is not there": ({"near": "txt"}, r"^contract.contamination.near: \w+ has no column 'txt'"),
    "a label that is not there": ({"label": "lable"}, r"^contract.contamination.label: \w+ has no column 'lable'; did"),
    "nothing left": ({"ignore": ["id", "a", "b", "c"]}, "no column is left"),
    "near on numbers": ({"columns": ["a"], "near": "b"}, "near: column 'b' is double, not text"),
    "all rows": ({"columns": ["b"], "on_found": "drop"}, "drops all rows of 'train'"),
}


def test_more_sides_than_near_can_note_are_refused(tmp_path: Path, here: list[str], monkeypatch) -> None:
    monkeypatch.setattr(stage, "MOST_NEAR_SIDES", 2)
    with pytest.raises(UsageError, match="contamination.near: 3 splits, .* would be compared, and at most 2 can be"):
        shard.find_or_make(opened(tmp_path / "tiny", {"near": "a"}), None)
    assert here == []


@pytest.mark.parametrize(("asked", "sentence"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    asked: Any, sentence: Any, tmp_path: Path, here: list[str]
) -> None:
    run = opened(tmp_path / "tiny", asked)
    with pytest.raises(UsageError, match=sentence):
        shard.find_or_make(run, None)
    store = open_store(run.store.uri)
    assert [one for one in store.list("contracts") if store.exists(f"contracts/{one}/manifest.json")] == []


@pytest.mark.parametrize(
    ("batch", "target", "label"),
    [
        (None, "label", ["label"]),
        ([["a", "b"], "label"], "1", ["label"]),
        ([["a", "b"], "label"], "-1", ["label"]),
        ([["a", "b"], "label"], "0", []),
        ({"x": ["a", "b"], "y": "label"}, "y", ["label"]),
        ({"x": ["a", "b"], "label": "c"}, "label", ["c"]),
    ],
)
def test_the_labels_are_the_columns_of_the_metrics_targets(tmp_path: Path, batch, target, label) -> None:
    train = {**SPEC["train"], "batch": batch} if batch is not None else SPEC["train"]
    metric = {**SPEC["evaluate"]["metrics"]["accuracy"], "target": target}
    run = opened(tmp_path / "tiny", "warn", train=train, evaluate={"metrics": {"accuracy": metric}})
    columns = dict.fromkeys(("part", "id", "a", "b", "c", "label"), "float64")
    ref = {"uri": "datasets/x-0", "id": "x", "seal": "x"}
    dataset = Dataset.from_json({"ref": ref, "key": "x", "format": "parquet", "splits": {}, "columns": columns})
    assert stage._labels(run, stage.section_of(run), dataset) == label


def test_pieces_of_documents_are_checked_and_compared_by_their_text_not_by_their_place(
    tmp_path: Path, here: list[str]
) -> None:
    folder = tmp_path / "tiny"
    lines = {name: [f"line {number} of {name}\n" for number in range(19)] for name in ("a", "b")}
    write_files(folder, {f"corpus/{name}.txt": "".join([*lines[name], "line 3 of a\n"]) for name in lines})
    suite = {"name": "corpus", "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "length", "min_value": 1, "max_value": 1}},
        {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "text", "regex": "^line"}},
    ]}  # fmt: skip

    spec = {
        "data": {"source": {"uri": "corpus/*.txt", "format": "text", "pieces": {"lines": 1}}},
        "contract": {"suite": suite, "contamination": {"on_found": "warn"}},
        "shards": {"split": {"by": "position"}},
    }
    run = open_run(read_spec(write_project(folder, spec)), recorded=False)
    report = validate(run)
    assert (report.rows, report.accepted) == (40, True)
    profile = read_profile(run.store, report.ref)
    assert {one.name for one in profile.columns} == {"document", "position", "pieces", "offset", "length", "text"}
    done = shard.find_or_make(run, report)
    assert done.error is None
    assert "2 rows of test are also in train" in done.sentence
    found = read_handoff(run.store, comparison(run), ContaminationReport)
    assert found.columns == ["text"]
    assert found.rows == {"train": 32, "val": 4, "test": 4}
