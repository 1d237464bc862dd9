"""Validate, shard, evaluation sets, quarantine and predict read a CSV as `data.csv` says: the rows of a plain one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from data_contracts.load import load_spec
from data_contracts.pipeline_spec import CsvSpec, SourceSpec
from tasks.predict import resolve_input
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import shard as stage
from tasks.stages.validate import validate
from tests.support.shard_rows import rows_in
from tests.support.tiny import SPEC, write_project

pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.warm]

OTHER = {"separator": ";", "decimal": ",", "encoding": "utf-16", "skip_rows": 1, "comment": "#"}
SUITE = {
    "name": "rows",
    "expectations": [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "min_value": -0.9}}],
}


def project(folder: Path, csv: dict[str, Any] | None) -> Run:
    """The tiny project, its rows with commas or as `OTHER` says, checked; its set has the same rows."""
    data = {"source": "rows.csv", **({"csv": csv} if csv else {})}
    sets = {"again": {"source": "more.csv", "contract": "none"}}
    contract = {"suite": SUITE, "quarantine": {"max_share": 0.2}}
    evaluate = {**SPEC["evaluate"], "sets": sets}
    spec = write_project(folder, {"data": data, "contract": contract, "evaluate": evaluate})
    text = (folder / "rows.csv").read_text()
    if csv:
        text = "sep=;\n# of the till\n" + text.replace(",", ";").replace(".", ",")
        (folder / "rows.csv").write_bytes(text.replace("\n", "\r").encode("utf-16"))
    (folder / "more.csv").write_bytes((folder / "rows.csv").read_bytes())
    return open_run(read_spec(spec), recorded=False)


def rows(run: Run, name: str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of a dataset, and those that were set aside."""
    contract = validate.find_or_make(run).handoff
    made = stage._make(run, None if name else contract, name)
    aside = pq.read_table(Path(run.store.uri) / contract.ref.uri / "quarantine.parquet").column("data").to_pylist()
    return sorted(rows_in(run.store, made), key=lambda row: row["id"]), aside


def test_rows_of_another_kind_of_csv_are_those_of_a_plain_one(tmp_path: Path) -> None:
    plain, other = project(tmp_path / "plain", None), project(tmp_path / "other", OTHER)
    kept, aside = rows(plain, None)
    assert len(kept) + len(aside) == 600
    assert aside
    assert rows(other, None) == (kept, aside)
    every = sorted([*kept, *aside], key=lambda row: row["id"])
    assert rows(other, "again") == (every, aside)
    assert stage.dataset_key(other) != stage.dataset_key(plain)


def test_predict_reads_csv_as_the_training_did(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("a;b\n1;2\n")
    [source], _ = resolve_input(str(tmp_path / "new.csv"), [SourceSpec(uri="x.csv", csv=CsvSpec(separator=";"))])
    assert source.csv == CsvSpec(separator=";")


def test_sources_take_the_settings_of_data_unless_they_have_their_own(tmp_path: Path) -> None:
    own = {"uri": "b.csv", "csv": {"separator": "|"}}
    data = {"source": ["a.csv", own, "c.parquet", "d/*"], "csv": {"separator": ";"}}
    evaluate = {**SPEC["evaluate"], "sets": {"e": {"source": "e.tsv.gz"}}}
    spec = load_spec(write_project(tmp_path / "tiny", {"data": data, "evaluate": evaluate}))
    assert not isinstance(spec.data, str)
    sources = [*spec.data.source, *(spec.evaluate.sets["e"].source or [])]
    assert [source.csv and source.csv.separator for source in sources] == [";", "|", None, ";", ";"]
    assert type(spec).model_validate(spec.model_dump(mode="json")) == spec
