"""validate: what it says of data that nothing can be checked in."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.handoffs import SourceFile
from tasks.run.options import RunOptions
from tasks.run.run import open_run
from tasks.stages.validate import IN_PROCESS_BYTES, contract_key, make_report, needs_child
from tests.support.tiny import write_project

REJECTED = "The contract rejects the data:"
YEAR = "2027-01-01T00:00:00+00:00..2028-01-01T00:00:00+00:00"
SENTENCES = {
    "a window after the rows": (
        "t,id\n2026-06-01,1\n",
        f"{REJECTED} no row is in the window {YEAR}. Check --window and data.window.column.",
    ),
    "no window": (
        "t,id\n",
        f"{REJECTED} the data has no rows. Correct the data, or change the suite if the data is right.",
    ),
}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("case", SENTENCES)
def test_a_rejection_without_rows_says_whether_the_window_is_the_reason(case: str, tmp_path: Path) -> None:
    rows, sentence = SENTENCES[case]
    spec = write_project(tmp_path / "tiny")
    (tmp_path / "tiny/rows.csv").write_text(rows)
    windowed = case != "no window"
    run = open_run(
        spec,
        overrides=["data.window.column=t"] if windowed else [],
        options=RunOptions(window="2027-01-01..2028-01-01" if windowed else None),
        recorded=False,
    )
    key = contract_key(run)
    assert key is not None
    assert str(make_report(run, key).error) == sentence


def test_large_or_remote_data_are_checked_in_a_process_that_can_be_ended() -> None:
    file = SourceFile(uri="/rows.csv", bytes=IN_PROCESS_BYTES, blake3="", format="csv")
    assert not needs_child([file])
    assert needs_child([file, file.model_copy(update={"bytes": 1})])
    assert needs_child([file.model_copy(update={"uri": "s3://b/rows.csv", "bytes": 1})])
