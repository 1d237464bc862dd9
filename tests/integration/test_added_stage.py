"""A stage that is added to the line runs in it: as a Prefect task, in the run's record and in its report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.added_stage import copy_with_card
from tests.support.tiny import answer, trainwright


@pytest.mark.slow
def test_an_added_stage_runs_in_the_line_and_is_recorded(tmp_path: Path, repository: Path) -> None:
    root = copy_with_card(repository, tmp_path / "copy")
    golden = Path(shutil.copytree(repository / "tests/golden/store-v1", tmp_path / "golden"))
    store = golden / "store"
    for status in ("ran", "reused"):
        line = ["run", golden / "project/pipeline.yaml", "--store", store, "--json"]
        done = trainwright(*line, cwd=tmp_path, env={"PYTHONPATH": str(root)})
        assert done.returncode == 0, done.stderr
        report = answer(done)
        expected = {"validate": "reused", "shard": "reused", "train": "reused", "verify": "reused", "card": status}
        told = {stage["name"]: stage["status"] for stage in report["stages"]}
        assert told == {**expected, "evaluate": "reused", "promote": "reused"}
        record = json.loads((store / "runs" / report["run_id"] / "stages/card.json").read_text())
        assert (record["name"], record["status"]) == ("card", status)
