"""What a rank writes, its supervisor reads: the same messages, under the names that people find in the folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from data_contracts.errors import NodeLost, UserCodeError
from data_contracts.messages.gang import RankAnswer, RankReport
from infra.gang.rank_files import RankFiles


def test_what_is_written_is_read(tmp_path: Path) -> None:
    files, report = RankFiles(tmp_path, 3), RankReport(rank=3, phase="training", step=7, metrics={"täuschung": 0.5})
    answer = RankAnswer(plan={"dropped_rows": 3})
    files.write_report(report)
    files.write_answer(answer)
    files.write_process(os.getpid())
    again = RankFiles(tmp_path, 3)
    assert (again.report(), again.answer(), again.pid(), again.is_done) == (report, answer, os.getpid(), True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pid-3.json", "rank-3.done.json", "rank-3.json"]


def test_the_first_reason_why_a_rank_ends_stays(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, 0)
    files.write_error(UserCodeError("ValueError in the model."))
    files.write_error(NodeLost("The connection was lost."))
    error = files.error()
    assert isinstance(error, UserCodeError)
    assert error.message == "ValueError in the model."
    assert json.loads((tmp_path / "rank-0.error.json").read_text()) == error.to_json()
