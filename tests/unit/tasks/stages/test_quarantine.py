"""A quarantine from the spec to the receipt's count: keys, what is sealed, who may read it, reuse, and refusals."""

from __future__ import annotations

import csv
import stat
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data_contracts.handoffs import ContractReport, Dataset
from infra.contract.quarantine import FILE
from infra.records.handoffs import read_handoff
from tasks.queries.plan import plan
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import artifacts
from tasks.stages.shard import shard
from tasks.stages.validate import validate
from tests.support.shard_rows import rows_in
from tests.support.tiny import write_project

pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.warm]
ON = "contract.quarantine.max_share=0.05"


@pytest.fixture
def spec(spec: Path) -> Path:
    """600 rows, of which rows 7 and 599 break a bound and row 8 lacks a value."""
    path = spec.with_name("rows.csv")
    rows = list(csv.reader(path.read_text().splitlines()))
    rows[8][1], rows[600][1], rows[9][2] = "7.5", "-3", ""
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    return spec


def opened(spec: Path, *overrides: str) -> Run:
    return open_run(read_spec(spec, list(overrides)), recorded=False)


def made(run: Run) -> tuple[ContractReport, Dataset]:
    report = validate(run)
    dataset = shard(run, report)
    return report, dataset


def test_rows_are_set_aside_counted_everywhere_and_not_made_again(spec: Path) -> None:
    run = opened(spec, ON)
    report, dataset = made(run)
    said = run.live.results["validate"].sentence
    assert said.startswith("597 of 600 rows meet 3 expectations; 3 rows set aside (0.500%): expect_column_values_to_be")
    assert run.live.results["shard"].sentence.endswith(" rows; 3 quarantined")
    assert dataset.dropped_rows == {"quarantined": 3}
    ids = {row["id"] for row in rows_in(run.store, dataset)}
    assert ids == set(range(600)) - {7, 8, 599}
    stored = Path(run.store.uri) / report.ref.uri / FILE
    assert stat.S_IMODE(stored.stat().st_mode) == 0o400
    assert pq.read_table(stored)["row"].to_pylist() == [7, 8, 599]
    page = artifacts.stage_page(run, "validate", handoff=report)
    assert f"Set aside: 3 of 600 rows, in `{report.ref.uri}/{FILE}`." in page
    assert "row 7 of `rows.csv`: `7.5`" in page

    again = opened(spec, ON)
    assert [(one.name, one.action) for one in plan(again, [validate, shard])] == [
        ("validate", "reuse"), ("shard", "reuse"),
    ]  # fmt: skip
    assert made(again) == (report, dataset)
    assert {one.status for one in again.live.results.values()} == {"reused"}
    assert again.live.results["validate"].sentence == said
    assert read_handoff(run.store, report.ref, ContractReport) == report


def test_a_killed_check_or_sharding_is_continued_with_the_same_rows(spec: Path) -> None:
    run = opened(spec, ON)
    report, dataset = made(run)
    for ref in (report.ref, dataset.ref):
        manifest = Path(run.store.uri) / ref.uri / "manifest.json"
        manifest.unlink()
    resumed, again = made(opened(spec, ON))
    assert (resumed.ref.id if resumed.ref else "", again.ref.id) == (report.ref.id, dataset.ref.id)
    assert again.ref.uri == dataset.ref.uri


def test_without_such_rows_the_shards_are_those_of_a_spec_without_a_quarantine(tmp_path: Path) -> None:
    spec = write_project(tmp_path / "plain")
    with_it, without = opened(spec, ON), opened(spec)
    report, dataset = made(with_it)
    assert report.quarantine is None
    shards = [[one.blake3 for one in made(run)[1].splits["train"]] for run in (with_it, without)]
    assert shards[0] == shards[1]
    assert dataset.dropped_rows == {}


def test_above_the_share_validate_rejects_and_seals_no_rows(spec: Path) -> None:
    run = opened(spec, "contract.quarantine.max_share=0.004")
    done = validate.find_or_make(run)
    assert done.error.exit_code == 3
    sentence = "Quarantine: 3 of 600 rows (0.500%) break expectations, more than max_share 0.004 allows."
    assert sentence in done.error.message
    assert not (Path(run.store.local(done.ref)) / FILE).exists()
    assert validate.find_or_make(opened(spec, "contract.quarantine.max_share=0.004")).status == "reused"


def test_values_of_a_sensitive_column_are_not_in_the_stored_rows(spec: Path) -> None:
    run = opened(spec, ON, 'data.sensitive=["a"]')
    report = validate(run)
    folder = Path(run.store.local(report.ref))
    assert "a" not in pq.read_table(folder / FILE).schema.field("data").type.names
    assert "7.5" not in (folder / "handoff.json").read_text()
