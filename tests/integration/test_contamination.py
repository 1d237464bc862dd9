"""A whole line whose test rows stand in train: they are dropped, the receipt names the report, the proof holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.messages.raw_data import ContaminationReport
from infra.models import registry
from infra.records.handoffs import read_handoff
from infra.store import open_store
from tests.support.tiny import answer, trainwright, write_project

pytestmark = pytest.mark.warm


def test_a_line_trains_without_the_copies_and_says_so_in_the_receipt(tmp_path: Path) -> None:
    contamination = {"on_found": "drop", "near": None}
    spec = write_project(tmp_path / "tiny", {"contract": {"suite": "suite.json", "contamination": contamination}})
    rows = (tmp_path / "tiny/rows.csv").read_text().splitlines()
    # Each row three times, under other ids: most test rows have a copy in train.
    copies = [f"{1000 * n + int(row.split(',')[0])},{row.partition(',')[2]}" for n in (1, 2) for row in rows[1:101]]
    (tmp_path / "tiny/rows.csv").write_text("\n".join([*rows, *copies]) + "\n")
    done = trainwright("run", spec, "--json")
    assert done.returncode == 0, done.stderr
    report = answer(done)
    [shard] = [one for one in report["stages"] if one["name"] == "shard"]
    assert "left out: " in shard["sentence"]
    store = open_store(str(tmp_path / "tiny/.trainwright"))
    [receipt] = registry.history(store, "tiny", "champion")
    assert receipt.contamination is not None
    found = read_handoff(store, receipt.contamination, ContaminationReport)
    assert found.dataset.id == report["dataset_id"]
    assert sum(found.dropped.values()) > 20
    assert found.overlaps
    proof = answer(trainwright("prove", "tiny@champion", "--store", tmp_path / "tiny/.trainwright", "--json"))
    assert receipt.contamination.uri in [link["uri"] for link in proof["links"]]
    again = answer(trainwright("plan", spec, "--no-estimate", "--json"))
    [planned] = [one for one in again["stages"] if one["name"] == "shard"]
    assert planned["action"] == "reuse"
