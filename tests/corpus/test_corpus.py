"""The corpus of odd files: what pandas, DuckDB, Great Expectations and we make of each, and the whole line on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.make import CASES, ROWS, write_case
from tests.corpus.readings import EXPECTED, PAGE, GreatExpectations, lines_of, read_all, table
from tests.corpus.reasons import REASONS, why
from tests.support.tiny import STAGES, answer, trainwright, write_project

pytestmark = pytest.mark.warm
EXPECTATIONS: dict[str, dict[str, Any]] = json.loads(EXPECTED.read_text())
VERDICTS = ("gx", "our verdict")
SPEC = {
    "contract": {"suite": {"name": "corpus", "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "min_value": -1, "max_value": 1}},
        {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "label", "value_set": [0, 1]}},
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}},
    ]}},
    "promote": {"gates": [{"metric": "accuracy", "min": 0}]},
}  # fmt: skip
# Files with one column `x` of texts beside the columns that are trained on, of every format and place.
TOGETHER = ("csv-bom", "csv-cr", "csv-quotes", "csv-mixed-ends", "jsonl-bom", "jsonl-surrogate-pair",
            "parquet-dictionary", "parquet-large-string", "gzip-members", "name-umlaut-plus")  # fmt: skip
COMPARED = sorted(EXPECTATIONS)[::9]
ACCEPTED = [name for name, lines in EXPECTATIONS.items() if lines.get("shards") == "as read"]


def test_every_file_is_read_as_expected(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Great Expectations, which takes longest, and our engine are asked about some of them, with --sweep about all."""
    asked = list(CASES) if pytestconfig.getoption("--sweep") else COMPARED
    others = [name for name in CASES if name not in asked]
    read = [*read_all(tmp_path / "asked", asked, GreatExpectations()), *read_all(tmp_path / "others", others, None)]
    found = {name: lines_of(CASES[name], readings) for name, readings in read}
    for name, lines in EXPECTATIONS.items():
        wanted = {reader: line for reader, line in lines.items() if name in asked or reader not in VERDICTS}
        assert found.pop(name) == wanted, f"{name}; if that is meant: python -m tests.corpus.readings"
    assert not found


def test_what_we_read_is_in_the_shards_to_the_bit() -> None:
    shards = {name: lines["shards"] for name, lines in EXPECTATIONS.items() if "shards" in lines}
    unlike = {name for name, line in shards.items() if line != "as read" and not line.startswith("exit code 2: ")}
    assert unlike == {"parquet-fixed-list"}  # a tensor there


def test_what_is_not_read_as_meant_has_a_reason() -> None:
    assert {case for cases in REASONS.values() for case in cases.split()} <= CASES.keys()
    for name, lines in EXPECTATIONS.items():
        assert bool(why(name, lines)) == (len(lines["as meant"]) < 3), name


def test_the_page_has_the_table_of_the_corpus() -> None:
    assert table(EXPECTATIONS) in PAGE.read_text(), "python -m tests.corpus.readings"


def carry_out(folder: Path, names: tuple[str, ...]) -> int:
    """Take the files of some cases from validate to promote; the rows that were sharded."""
    sources = [{**one, "uri": f"{name}/{one['uri']}"} for name in names for one in write_case(name, folder / name)]
    spec = write_project(folder, {**SPEC, "data": {"source": sources}})
    rows = 0
    for stage in STAGES:
        done = trainwright(stage, spec, "--json", env={"TRAINWRIGHT_HOME": str(folder / "home")})
        assert done.returncode == 0, (names, stage, done.stderr)
        if stage == "shard":
            rows = sum(one["rows"] for split in answer(done)["handoff"]["splits"].values() for one in split)
    return rows


def test_a_model_is_trained_on_ten_odd_files_together(tmp_path: Path) -> None:
    assert carry_out(tmp_path, TOGETHER) == ROWS * len(TOGETHER)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_model_is_trained_on_each(name: str, tmp_path: Path) -> None:
    assert carry_out(tmp_path, (name,)) == ROWS
