"""What is kept of files gives the verdict, counts and profile of a full read, whatever is known and in any order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.canonical import canonical
from data_contracts.contract import file_statistics as statistics_records
from data_contracts.contract.file_statistics import kept, reads_all_files
from data_contracts.contract.questions import ScanQuestion
from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.messages import Message
from data_contracts.messages.raw_data import ClusterTaskOrder, ContractOutcome, ContractRequest, SharedFolder
from data_contracts.pipeline_spec import SourceSpec
from infra.contract import contract_worker, file_statistics
from infra.contract.file_statistics import KNOWN, NEW, in_tasks, read_facts
from infra.files import file_digest
from infra.sources import read, resolve_sources
from tests.support.cluster_tasks import Elsewhere
from tests.support.expectations import E, plan, suite
from tests.support.files import write_files

POSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("column_values_to_not_be_null", {"column": "id"}),
    ("column_values_to_not_be_null", {"column": "x", "mostly": 0.5}),
    ("column_values_to_be_between", {"column": "x", "min_value": -3, "max_value": 3}),
    ("column_values_to_be_between", {"column": "x", "min_value": -30, "max_value": 30}),
    ("column_values_to_be_in_set", {"column": "word", "value_set": ["a", "b", "é"]}),
    ("column_value_lengths_to_be_between", {"column": "word", "max_value": 4}),
    ("column_values_to_be_unique", {"column": "id"}),
    ("column_unique_value_count_to_be_between", {"column": "word", "max_value": 5}),
    ("column_mean_to_be_between", {"column": "x", "min_value": -1, "max_value": 1}),
    ("column_sum_to_be_between", {"column": "id", "min_value": 0}),
    ("column_stdev_to_be_between", {"column": "x", "max_value": 9}),
    ("column_min_to_be_between", {"column": "x", "min_value": -50}),
    ("column_max_to_be_between", {"column": "id", "max_value": 700}),
    ("table_row_count_to_be_between", {"min_value": 1}),
]


def written(folder: Path, number: int, rows: int, draw: np.random.Generator) -> SourceFile:
    """A file; every fourth one is of another kind or lacks a column."""
    x = pa.array(draw.normal(size=rows), mask=draw.random(rows) < 0.1)
    table = pa.table({"id": np.arange(rows) + 100 * number, "x": x, "word": draw.choice(["a", "b", "é"], rows)})
    if number % 4 == 3:
        table = table.drop_columns(["x"])
    path = folder / f"{number}.parquet"
    pq.write_table(table, path)
    return listed(path)


def listed(path: Path) -> SourceFile:
    return SourceFile(uri=str(path), bytes=path.stat().st_size, blake3=file_digest(path), format="parquet")


def of_100_rows(folder: Path, count: int) -> list[SourceFile]:
    draw = np.random.default_rng(0)
    return [written(folder, number, 100, draw) for number in range(count)]


def request(
    root: Path, files: list[SourceFile], chosen: Iterable[tuple[str, dict[str, Any]]], *sensitive: str, **more: Any
) -> ContractRequest:
    """A check of these expectations on the files."""
    given = {"sources": [SourceSpec(uri=str(root / "*.parquet"))], "sensitive": list(sensitive), **more}
    rules = suite(*(E(name, **kwargs) for name, kwargs in chosen))
    return ContractRequest(
        suite=rules, files=files, root=str(root), window=None, window_column=None, fail_on="info", **given
    )


def outcome(asked: ContractRequest, parts: Path | None = None, elsewhere: Elsewhere | None = None) -> ContractOutcome:
    """The outcome in a process that has not seen the files; parts that are made are known afterwards.

    Args:
        elsewhere: other machines, which measure the files.
    """
    read._FACTS.clear()
    if parts is None:
        return contract_worker.main(asked, lambda report: None)
    for name in (KNOWN, NEW):
        (parts / name).mkdir(exist_ok=True, parents=True)
    shared = SharedFolder(folder=str(elsewhere.cluster.folder), at_once=4) if elsewhere is not None else None

    def report(message: Message) -> None:
        if isinstance(message, ClusterTaskOrder):
            elsewhere.done(message)

    found = contract_worker.main(asked.model_copy(update={"statistics": str(parts), "cluster": shared}), report)
    for path in (parts / NEW).iterdir():
        path.rename(parts / KNOWN / path.name)
    return found


PAIR = {"column_A": "id", "column_B": "other"}
# Beside those that are possible, with what is over all files.
MORE: list[tuple[str, dict[str, Any]]] = [
    ("column_median_to_be_between", {"column": "x", "max_value": 9}),
    ("column_proportion_of_unique_values_to_be_between", {"column": "id", "max_value": 1}),
    ("column_distinct_values_to_be_in_set", {"column": "word", "value_set": ["a"]}),
    ("column_values_to_match_regex", {"column": "word", "regex": "^a"}),
    ("column_pair_values_to_be_equal", PAIR),
    ("column_pair_values_a_to_be_greater_than_b", PAIR),
    ("multicolumn_sum_to_equal", {"column_list": ["id", "other"], "sum_total": 3}),
    ("compound_columns_to_be_unique", {"column_list": ["id", "other"]}),
    ("select_column_values_to_be_unique_within_record", {"column_list": ["id", "other"]}),
    ("column_values_to_be_between", {"column": "id", "min_value": 0, "row_condition": "other > 3",
                                     "condition_parser": "pandas"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kwargs"), [*POSSIBLE, *MORE])
def test_the_name_of_an_expectation_tells_whether_it_reads_all_files(name: str, kwargs: dict[str, Any]) -> None:
    asked = E(name, **kwargs)
    whole, real = pa.int64(), pa.float64()
    question = plan(asked, pa.schema([("id", whole), ("other", whole), ("x", real), ("word", pa.string())]))
    assert isinstance(question, ScanQuestion)
    assert reads_all_files(asked) == (kept(question.measures, []) != list(dict.fromkeys(question.measures)))


@pytest.mark.parametrize("seed", range(3))
def test_the_outcome_is_that_of_a_full_read(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        statistics_records, "USUAL", (2, 1, 64)[seed]
    )  # half of the files end a group, or each, or none
    monkeypatch.setattr(statistics_records, "LARGEST", 3)
    draw, choose = np.random.default_rng(seed), random.Random(seed)
    files = [written(tmp_path, number, int(draw.integers(1, 400)), draw) for number in range(5)]
    chosen, sensitive = choose.sample(POSSIBLE, 6), choose.choice([[], ["x"]])
    changed = written(tmp_path, 9, 50, draw)
    for some in (files[:3], files[::-1], [*files[1:], files[1]], choose.sample([*files, changed], 4)):
        asked = request(tmp_path, some, chosen, *sensitive)
        assert canonical(outcome(asked, tmp_path / "parts").to_json()) == canonical(outcome(asked).to_json())


def test_a_known_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, parts = of_100_rows(tmp_path, 3), tmp_path / "parts"
    asked = request(tmp_path, files, POSSIBLE[:6:3])
    first = outcome(asked, parts)
    assert first.accepted
    measured = []
    real = file_statistics.scanned
    monkeypatch.setattr(file_statistics, "scanned", lambda *given: measured.append(given) or real(*given))
    Path(files[1].uri).unlink()
    again = outcome(asked, parts)  # only the first file is opened, for its schema
    assert canonical(again.to_json()) == canonical(first.to_json())
    assert measured == []
    more = [*files[::2], of_100_rows(tmp_path, 5)[4]]
    outcome(asked.model_copy(update={"files": more}), parts)
    assert len(measured) == 1


def test_equal_documents_in_two_places_and_in_two_ways_are_not_each_other(tmp_path: Path) -> None:
    """A document's name and the columns of its path are data, and so is how it is cut."""
    write_files(tmp_path, dict.fromkeys(["eu/a.txt", "xx/a.txt"], "one line\n" * 40))
    cut = [{"uri": f"{folder}/*.txt", "pattern": "{region}/{name}.txt", "format": "text", "pieces": {"lines": lines}}
           for folder, lines in (("eu", 10), ("xx", 20))]  # fmt: skip
    sources = [SourceSpec.model_validate(one) for one in cut]
    files = resolve_sources(sources, root=tmp_path, window=None, window_path=None, cache=tmp_path / "cache")
    rules = [("column_values_to_be_in_set", {"column": "region", "value_set": ["eu"]}),
             ("table_row_count_to_be_between", {"max_value": 6})]  # fmt: skip
    asked = request(tmp_path, files, rules, sources=sources)
    whole = outcome(asked)
    assert (whole.rows, [one.rows for one in whole.failures]) == (6, [2])
    for _ in range(2):
        assert outcome(asked, tmp_path / "parts") == whole


def test_a_group_stands_for_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_records, "LARGEST", 2)
    monkeypatch.setattr(statistics_records, "USUAL", 2**40)
    files, parts = of_100_rows(tmp_path, 5), tmp_path / "parts"
    asked = request(tmp_path, files, POSSIBLE[:6:3])
    first = outcome(asked, parts)
    for path in (parts / KNOWN).iterdir():
        if not path.name.startswith("group-") and path.name != file_statistics.statistics_names(asked)[4]:
            path.unlink()
    assert len(list((parts / KNOWN).iterdir())) == 3  # two groups, and the part of the last file
    for file in files[1:]:
        Path(file.uri).unlink()
    assert canonical(outcome(asked, parts).to_json()) == canonical(first.to_json())


def test_where_a_document_is_cut_is_part_of_its_parts_name() -> None:
    pieces = {"tokens": 2, "tokenizer": "any.Class"}
    source = SourceSpec.model_validate({"uri": "a.txt", "format": "text", "pieces": pieces})
    file = SourceFile(uri="a.txt", bytes=1, blake3="0f", format="text")
    cuts = (None, "cut", "another")
    names = {file_statistics.statistics_name(file.model_copy(update={"chunk_offsets": cut}), source) for cut in cuts}
    assert len(names) == 3


def test_no_part_holds_a_sensitive_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_records, "LARGEST", 2)
    rules = [(name, kwargs) for name, kwargs in POSSIBLE if kwargs.get("column") == "x"]
    outcome(request(tmp_path, of_100_rows(tmp_path, 2), rules, "x"), tmp_path / "parts")
    for path in (tmp_path / "parts" / KNOWN).iterdir():
        group = path.name.startswith("group-")
        kind = statistics_records.StatisticsGroup if group else file_statistics.FileStatistics
        part = kind.model_validate_json(path.read_bytes())
        values = [one for value in part.values.values() for one in (value if isinstance(value, list) else [value])]
        assert all(type(value) is int for value in values)
        assert next(one for one in part.profile.columns if one.name == "x").minimum is None


CHANGES: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    **{name: ("*", lambda part, new=new: part.update(new)) for name, new in {
        "no schema": {"own": "zz"}, "another schema": {"own": "00" * 40}, "no rows": {"rows": None},
        "negative rows": {"rows": -5}, "no profile": {"profile": {}},
    }.items()},
    "a group of fewer files": ("group-*", lambda group: group["files"].pop()),
    "a group of fewer files and values": (
        "group-*", lambda group: [group["files"].pop(), *(every.pop() for every in group["values"].values())]
    ),
    "a group without a schema": ("group-*", lambda group: group["files"][0].update(schema_at=9)),
    "a group with negative rows": ("group-*", lambda group: group.update(rows=-5)),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_what_cannot_be_read_or_does_not_fit_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    pattern, change = CHANGES[case]
    monkeypatch.setattr(statistics_records, "LARGEST", 2 if pattern == "group-*" else statistics_records.LARGEST)
    asked, parts = request(tmp_path, of_100_rows(tmp_path, 2), POSSIBLE[:1]), tmp_path / "parts"
    found = outcome(asked, parts)
    spoilt = list((parts / KNOWN).glob(pattern))
    assert spoilt
    for path in spoilt:
        part = json.loads(path.read_text())
        change(part)
        path.write_text(json.dumps(part))
    assert outcome(asked, parts) == found


# Other machines measure files. (A real cluster: integration.)
ROWS = (1, 0, 700, 40, 3, 250)  # of files, one of them without rows
MIB = 2**20


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    monkeypatch.setattr(file_statistics, "LEAST_TASK_BYTES", 1)
    return Elsewhere(tmp_path / "shared", field="contract.runner")


@pytest.fixture
def asked(tmp_path: Path) -> ContractRequest:
    """A check of files of unequal sizes and columns, the last of them listed twice."""
    draw = np.random.default_rng(0)
    files = [written(tmp_path, number, rows, draw) for number, rows in enumerate(ROWS)]
    return request(tmp_path, [*files, files[-1]], [*POSSIBLE, *MORE[:4]], "x")


def test_the_report_is_that_of_this_machine_to_the_byte(
    asked: ContractRequest, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    here, there = outcome(asked, tmp_path / "here"), outcome(asked, tmp_path / "there", elsewhere)
    assert canonical(there.to_json()) == canonical(here.to_json())
    assert here.failures
    names = [sorted(path.name for path in (tmp_path / where / KNOWN).iterdir()) for where in ("here", "there")]
    assert names[0] == names[1]
    assert len(names[0]) == len(ROWS)  # the file that is listed twice is measured once
    assert elsewhere.ordered["read_facts"] > 1
    assert elsewhere.ordered["measure_file"] > 1
    assert list(elsewhere.cluster.folder.iterdir()) == []


def test_only_new_files_are_handed_over(asked: ContractRequest, elsewhere: Elsewhere, tmp_path: Path) -> None:
    before = asked.model_copy(update={"files": asked.files[: len(ROWS) - 1]})
    outcome(before, tmp_path / "parts", elsewhere)
    elsewhere.ordered.clear()
    again = outcome(asked, tmp_path / "parts", elsewhere)
    assert elsewhere.ordered == {"read_facts": 2, "measure_file": 1}  # the last file, which is listed twice
    assert again.rows == sum(ROWS) + ROWS[-1]


def test_what_duckdb_cannot_measure_there_is_not_tried_here(
    asked: ContractRequest, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    monkeypatch.setattr(file_statistics, "scanned", lambda *given: measured.append("scan"))
    assert outcome(asked, tmp_path / "there", elsewhere).rows == sum(ROWS) + ROWS[-1]
    assert len(measured) == len(ROWS)
    assert list((tmp_path / "there" / KNOWN).iterdir()) == []


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
