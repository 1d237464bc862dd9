"""`predict`: raw rows of any kind to one line each, equal to what evaluate computed, whatever interrupts it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import (
    CorruptError,
    StorageUnavailable,
    TrainwrightError,
    UserCodeError,
)
from data_contracts.handoffs import Dataset, Evaluation
from data_contracts.messages.raw_data import PREDICT
from infra import child
from infra.models import registry
from infra.records.handoffs import read_handoff
from infra.store import Store, open_store
from tasks import predict as predicting
from tasks.predict import Model, PredictOptions, PredictSummary, _preparation, open_model, predict
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tests.support.damage import HARMS
from tests.support.raw_rows import raw, write, write_line
from tests.support.runs import carry_out
from tests.support.tiny import answer, own_modules, trainwright, work_on_a_copy
from training.predict import batches, output, worker
from training.predict.worker import PART_ROWS

pytestmark = pytest.mark.warm


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose model was promoted; its raw rows need a transform."""
    spec = write_line(tmp_path_factory.mktemp("project") / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWRIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        carry_out(open_run(read_spec(spec)))
    return spec.parent


@pytest.fixture
def project(line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, as the current folder; the child's work is done in this process."""
    copy = work_on_a_copy(line, tmp_path, monkeypatch)

    def here(kind: Any, request: Any, **more: Any) -> Any:
        if kind is not PREDICT:
            return child.run_child(kind, request, **more)
        return worker.main(request, lambda report: None)

    monkeypatch.setattr(predicting, "run_child", here)
    with own_modules():
        yield copy


def store_of(project: Path) -> Store:
    return open_store(str(project / ".trainwright"), create=False)


def ask(project: Path, input_: Path | str, output: str, **more: Any) -> PredictSummary:
    return predict(
        store_of(project), PredictOptions(model="tiny", input=str(input_), output=output, **more), lambda _: None
    )


def refused(kind: type[TrainwrightError], work: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        work()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


def test_raw_rows_get_the_predictions_that_evaluate_computed_to_the_bit(project: Path) -> None:
    store = store_of(project)
    evaluation = read_handoff(store, registry.read_version(store, "tiny", 1).evaluation, Evaluation)
    table = pq.read_table(project / ".trainwright" / evaluation.ref.uri / evaluation.predictions[""].file)
    dataset = read_handoff(
        store,
        store.manifest(
            next(project.glob(".trainwright/datasets/*")).relative_to(project / ".trainwright").as_posix()
        ).ref,
        Dataset,
    )
    shard = dataset.splits["test"][0]
    ids = pq.read_table(project / ".trainwright" / shard.uri / shard.path).column("id").to_pylist()
    # Without the label, and with columns that the training did not have, in another order.
    rows = [[f"x{number}", *raw(number)[3::-1]] for number in ids]
    write(project / "new.csv", rows, ("more", "day", "b", "a", "id"))
    summary = ask(project, "new.csv", "out.parquet", keep=["id"])
    out = pq.read_table(project / "out.parquet")
    assert (out.column("row").to_pylist(), out.column("id").to_pylist()) == (list(range(len(ids))), ids)
    assert out.schema.field("prediction").type == pa.list_(pa.float32(), 2)
    expected = list(zip(*(table.column(f"prediction_{at}").to_pylist() for at in (0, 1)), strict=True))
    assert [tuple(one) for one in out.column("prediction").to_pylist()] == expected
    assert summary.predicted.no_label == ["label"]
    # And the metric that was sealed.
    right = [(one[1] > one[0]) == (raw(number)[4] == "yes") for one, number in zip(expected, ids, strict=True)]
    assert sum(right) / len(right) == pytest.approx(evaluation.metrics["accuracy"].value, abs=1e-6)


def test_the_formats_hold_the_same_predictions_and_files_of_a_folder_come_by_name(project: Path) -> None:
    folder = project / "new"
    folder.mkdir()
    write(folder / "b.csv", [raw(1)])
    rows = [dict(zip(("id", "a", "b", "day"), raw(number), strict=False)) for number in (2, 0)]
    (folder / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    columns = {"day": ["tue"], "a": pa.array([0.5], pa.float32()), "b": [0.25], "id": [7], "label": ["no"]}
    pq.write_table(pa.table(columns), folder / "c.parquet")
    (folder / "_SUCCESS").write_text("")
    write(folder / "d.csv", [[0.0, 0.5, "mon", "yes", 8]], ("a", "b", "day", "label", "id"))
    for suffix in ("parquet", "csv"):
        assert ask(project, folder, f"out.{suffix}").predicted.rows == 5
    parquet = pq.read_table("out.parquet").column("prediction").to_pylist()
    flat = pyarrow.csv.read_csv("out.csv")
    assert flat.column_names == ["row", "prediction_0", "prediction_1"]
    assert flat.column("prediction_1").cast(pa.float32()).to_pylist() == [one[1] for one in parquet]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_no_rows_give_an_empty_file_with_all_columns(project: Path, suffix: str) -> None:
    write(project / "new.csv", [])
    summary = ask(project, "new.csv", f"out.{suffix}", keep=["id"])
    assert (summary.predicted.rows, summary.predicted.columns[:2]) == (0, ["row", "id"])
    assert len(summary.predicted.columns) > 2
    if suffix == "parquet":
        assert pq.read_table("out.parquet").schema.names == ["row", "id", "prediction"]
    else:
        assert Path("out.csv").read_bytes().count(b"\n") == 1


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("id,a,b,dai,label", "1,0,0,mon,yes", "no column day"),
        ("ID,A,B,DAY", "1,0,0,mon", "no column"),
        ("id,a,b,day,label", "1,x,0,mon,yes", "the column a is string"),
        ("id,a,b,day,label", "1,0,0,mon", "of the file has 4 values"),
        ("id,a,b,day,a", "1,0,0,mon,0", "the column a twice"),
        ("id,a,b,day,label", "1,0,0,bad,yes", "ValueError: no such day, on row 0 of the input"),
        ("id,a,b,day,label", "1,0,0,sat,yes", "KeyError: 'sat', on row 0 of the input"),
        ("id,a,b,day,label", "1,inf,0,mon,yes", "RuntimeError: infinite, on row 0 of the input"),
        ("id,a,b,day,label", "1,0,0,tue,yes\n1,0,0,wed,yes", "KeyError"),
    ],
)
def test_what_is_wrong_with_rows_is_one_sentence(project: Path, header: str, row: str, words: str) -> None:
    (project / "new.csv").write_text(f"{header}\n{row}\n")
    assert words in refused(TrainwrightError, lambda: ask(project, "new.csv", "out.csv"))
    assert not list(project.glob("*out.csv*")), "nothing is left to continue from"


def test_a_transform_that_drops_rows_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "new.csv", [raw(number) for number in range(3)])
    monkeypatch.setattr(
        worker.Features, "_transformed", lambda self, where, rows: pa.Table.from_batches([rows.slice(1)])
    )
    words = refused(UserCodeError, lambda: ask(project, "new.csv", "out.csv"))
    assert "returned 2 rows for rows 0 to 2 of the input" in words


def test_an_empty_value_where_training_saw_none(project: Path) -> None:
    write(project / "new.csv", [[1, "", 0.5, "mon", "yes"]])
    ask(project, "new.csv", "out.parquet")
    [prediction] = pq.read_table("out.parquet").column("prediction").to_pylist()
    assert all(math.isnan(value) for value in prediction)  # NaN in, NaN out


@pytest.mark.parametrize(
    ("input_", "output", "words"),
    [
        ("none.csv", "out.csv", "no file matches none.csv"),
        ("rows.csv", "out.txt", "format of out.txt is not clear"),
        ("suite.json", "out.csv", "has no column"),
        ("features.py", "out.csv", "is not clear from its name"),
        ("rows.csv", "rows.csv", "exists already"),
        ("rows.csv", "no/out.csv", "There is no folder"),
        ("rows.csv", "s3://b/out.csv", "is not a path"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_one_sentence(project: Path, input_: str, output: str, words: str) -> None:
    before = (project / "rows.csv").read_bytes()
    assert words in refused(TrainwrightError, lambda: ask(project, input_, output))
    assert (project / "rows.csv").read_bytes() == before


def test_files_with_other_columns_are_refused(project: Path) -> None:
    write(project / "one.csv", [raw(0)])
    write(project / "one2.csv", [raw(0)[1:]], ("a", "b", "day", "label"))
    assert "one2.csv has no column id, which" in refused(TrainwrightError, lambda: ask(project, "one*.csv", "out.csv"))
    assert "did you mean day?" in refused(TrainwrightError, lambda: ask(project, "one.csv", "out.csv", keep=["dey"]))


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_stopped_attempt_continues_and_the_file_is_the_same(
    project: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(worker, "PART_ROWS", 1)
    for module in (batches, worker):
        monkeypatch.setattr(module, "block_rows", lambda size: size)
    write(project / "new.csv", [raw(number) for number in range(40)])
    ask(project, "new.csv", f"whole.{suffix}", batch_size=4)
    whole = (project / f"whole.{suffix}").read_bytes()
    finish = output.UnfinishedOutput.finish

    class Stop(StorageUnavailable):
        pass

    for stop in (3, 2):
        left = [stop]

        def stopping(self: output.UnfinishedOutput, first: int, end: int, left: list[int] = left) -> None:
            if not left[0]:
                raise Stop("stopped")
            left[0] -= 1
            finish(self, first, end)

        monkeypatch.setattr(output.UnfinishedOutput, "finish", stopping)
        with pytest.raises(Stop):
            ask(project, "new.csv", f"out.{suffix}", batch_size=4)
    monkeypatch.setattr(output.UnfinishedOutput, "finish", finish)
    assert ask(project, "new.csv", f"out.{suffix}", batch_size=4).predicted.resumed_rows == 20
    assert (project / f"out.{suffix}").read_bytes() == whole
    assert not list(project.glob(".out*"))


def test_a_checkpoint_that_was_changed_is_not_used(project: Path) -> None:
    write(project / "new.csv", [raw(0)])
    ref = registry.read_version(store_of(project), "tiny", 1).checkpoint.ref
    file = max((project / ".trainwright" / ref.uri).glob("*.safetensors"), key=lambda path: path.stat().st_size)
    HARMS["bit"](file, file)
    refused(CorruptError, lambda: ask(project, "new.csv", "out.csv"))
    assert not Path("out.csv").exists()


def test_a_dataset_that_does_not_name_its_transform_gets_it_from_its_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(project)
    version = registry.read_version(store, "tiny", 1)
    found = open_model(store, "tiny@1")
    made = store.manifest(found.dataset.ref)
    earlier = made.provenance.pop("preparation")
    assert _preparation(store, version, found.dataset, made) == earlier
    (project / ".trainwright/runs" / made.provenance["run_id"]).rename(project / "gone")
    refused(TrainwrightError, lambda: _preparation(store, version, found.dataset, made))


def test_a_killed_command_continues_and_two_at_once_are_refused(
    line: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = PART_ROWS + 500
    write(tmp_path / "new.csv", [raw(number) for number in range(rows)])
    store, words = line / ".trainwright", ["predict", "tiny", tmp_path / "new.csv"]
    options = ["--batch-size", "64", "--store", store, "--json"]
    out, folder = tmp_path / "out.csv", tmp_path / ".out.csv.trainwright"
    command = [sys.executable, "-m", "flows.cli", *map(str, [*words, out, *options])]
    # However fast the machine is, the last rows are not predicted before it is killed.
    held = {"HELD_FROM_BATCH": str(PART_ROWS // 64)}
    environment = {**os.environ, **held, "PYTHONPATH": str(Path(__file__).parents[4])}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 480
    try:
        while not list(folder.glob("part-*")) and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert first.poll() is None
        monkeypatch.setattr(output, "WAIT_S", 0.2)
        with pytest.raises(TrainwrightError, match="Another process is writing"):
            output.UnfinishedOutput(out, {})
    finally:
        first.kill()
        first.wait()
    done = trainwright(*words, out, *options)
    assert done.returncode == 0, done.stderr
    told = answer(done)
    assert told["rows"] == rows
    assert 0 < told["resumed_rows"] <= PART_ROWS
    assert not folder.exists()
    assert pyarrow.csv.read_csv(out).column("row").to_pylist() == list(range(rows))


def test_without_a_transform_only_the_columns_of_a_batch_are_read_as_in_training(project: Path) -> None:
    model = open_model(store_of(project), "tiny")
    assert model.types_to_read == model.raw_types  # its transform may read any column
    assert {"label"} < model.raw_types.keys()

    def without_transform(batch: Any) -> Model:
        sealed = {**model.trained.sealed, "train": {**model.trained.train, "batch": batch}}
        return replace(model, transform=None, trained=replace(model.trained, sealed=sealed))

    plain = without_transform([["x0"], "label"])
    assert plain.types_to_read == {name: kind for name, kind in model.raw_types.items() if name in ("x0", "label")}
    assert without_transform(None).types_to_read == model.raw_types
