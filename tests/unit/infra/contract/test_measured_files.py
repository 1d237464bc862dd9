"""Files that other machines measure give the report of a check on this machine. (A real cluster: integration.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.canonical import canonical
from data_contracts.contract.suites import load_suite
from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.messages import Message
from data_contracts.messages.raw_data import ClusterTaskOrder, ContractOutcome, ContractRequest, SharedFolder
from data_contracts.pipeline_spec import SourceSpec
from infra.contract import contract_worker, file_statistics
from infra.contract.file_statistics import KNOWN, NEW, in_tasks, read_facts
from infra.files import file_digest
from infra.sources import read
from tests.support.cluster_tasks import Elsewhere

MIB = 2**20
# Some hold by what adds up, some read all files again, and some do not hold.
EXPECTED: list[tuple[str, dict[str, Any]]] = [
    ("column_values_to_not_be_null", {"column": "id"}),
    ("column_values_to_be_between", {"column": "x", "min_value": -30, "max_value": 30}),
    ("column_values_to_be_between", {"column": "x", "min_value": -1, "max_value": 1}),
    ("column_values_to_be_in_set", {"column": "word", "value_set": ["a", "b"]}),
    ("column_mean_to_be_between", {"column": "x", "min_value": -1, "max_value": 1}),
    ("column_median_to_be_between", {"column": "x", "min_value": -1, "max_value": 1}),
    ("column_values_to_be_unique", {"column": "id"}),
    ("column_stdev_to_be_between", {"column": "x", "max_value": 9}),
    ("column_values_to_be_unique", {"column": "word"}),
    ("table_row_count_to_be_between", {"min_value": 1}),
]
ROWS = (1, 0, 700, 40, 3, 250, 90)  # of files, one of them without rows


@pytest.fixture
def asked(tmp_path: Path) -> ContractRequest:
    """A check of files of unequal sizes and columns, the last of them listed twice."""
    draw, files, first = np.random.default_rng(0), [], 0
    for number, rows in enumerate(ROWS):
        x = pa.array(draw.normal(size=rows), mask=draw.random(rows) < 0.1)
        table = pa.table({"id": np.arange(rows) + first, "x": x, "word": draw.choice(["a", "b", "é"], rows)})
        path, first = tmp_path / f"{number}.parquet", first + rows
        pq.write_table(table.drop_columns(["x"]) if number == 4 else table, path)
        files.append(SourceFile(uri=str(path), bytes=path.stat().st_size, blake3=file_digest(path), format="parquet"))
    entries = [{"type": f"expect_{name}", "kwargs": kwargs} for name, kwargs in EXPECTED]
    return ContractRequest(
        suite=load_suite({"name": "s", "expectations": entries}, tmp_path), files=[*files, files[-1]],
        sources=[SourceSpec(uri="*.parquet")], root=str(tmp_path), window=None, window_column=None, fail_on="info",
        sensitive=[],
    )  # fmt: skip


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    monkeypatch.setattr(file_statistics, "LEAST_TASK_BYTES", 1)
    return Elsewhere(tmp_path / "shared", field="contract.runner")


def checked(asked: ContractRequest, parts: Path, elsewhere: Elsewhere | None = None) -> ContractOutcome:
    """The outcome in a process that has not seen the files, and the parts that it leaves."""
    read._FACTS.clear()
    for name in (KNOWN, NEW):
        (parts / name).mkdir(parents=True, exist_ok=True)
    shared = SharedFolder(folder=str(elsewhere.cluster.folder), at_once=4) if elsewhere is not None else None

    def report(message: Message) -> None:
        if isinstance(message, ClusterTaskOrder):
            assert elsewhere is not None
            elsewhere.done(message)

    return contract_worker.main(asked.model_copy(update={"statistics": str(parts), "cluster": shared}), report)


def test_the_report_is_that_of_this_machine_to_the_byte(
    asked: ContractRequest, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    asked = asked.model_copy(update={"sensitive": ["x"]})
    here, there = checked(asked, tmp_path / "here"), checked(asked, tmp_path / "there", elsewhere)
    assert canonical(there.to_json()) == canonical(here.to_json())
    assert here.failures
    names = [sorted(path.name for path in (tmp_path / where / NEW).iterdir()) for where in ("here", "there")]
    assert names[0] == names[1]
    assert len(names[0]) == len(ROWS)  # the file that is listed twice is measured once
    assert elsewhere.ordered["read_facts"] > 1
    assert elsewhere.ordered["measure_file"] > 1
    assert list(elsewhere.cluster.folder.iterdir()) == []


def test_only_new_files_are_handed_over(asked: ContractRequest, elsewhere: Elsewhere, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    checked(asked.model_copy(update={"files": asked.files[:6]}), parts, elsewhere)
    for path in (parts / NEW).iterdir():
        path.rename(parts / KNOWN / path.name)
    elsewhere.ordered.clear()
    again = checked(asked, parts, elsewhere)
    assert elsewhere.ordered == {"read_facts": 2, "measure_file": 1}  # the last file, which is listed twice
    assert canonical(again.to_json()) == canonical(checked(asked, tmp_path / "here").to_json())


def test_what_duckdb_cannot_measure_there_is_not_tried_here(
    asked: ContractRequest, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    monkeypatch.setattr(file_statistics, "scanned", lambda *given: measured.append("scan"))
    there = checked(asked, tmp_path / "there", elsewhere)
    assert len(measured) == len(ROWS)
    assert there.rows == sum(ROWS) + ROWS[-1]
    assert list((tmp_path / "there" / NEW).iterdir()) == []


def test_a_file_that_a_worker_cannot_read_is_named_with_what_to_do(asked: ContractRequest, tmp_path: Path) -> None:
    Path(asked.files[2].uri).unlink()
    sentence = r"contract.runner: a worker of the cluster cannot read .*2.parquet"
    with pytest.raises(UsageError, match=sentence) as caught:
        read_facts(asked.sources, tmp_path, asked.files[2])
    assert "the same path on every machine" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("sizes", "at_once", "pieces"),
    [
        ([], 4, []),
        ([7 * MIB], 4, [[0]]),
        ([MIB] * 3, 4, [[0, 1, 2]]),  # a piece of less costs more to start than to do
        ([2 * MIB] * 8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([30 * MIB, 0, MIB, MIB, 30 * MIB, 2 * MIB], 4, [[0], [1, 2, 3, 4], [5]]),
        ([200 * MIB] * 8, 2, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([0, 0, 0], 2, [[0, 1, 2]]),
    ],
)
def test_neighbours_make_pieces_of_about_one_size(sizes: list[int], at_once: int, pieces: list[list[int]]) -> None:
    assert [list(task) for task in in_tasks(sizes, at_once)] == pieces
