"""A real run on a terminal: the live view while it works, Ctrl-C in the middle, and its name in Prefect."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.orchestrator.server import server_status
from tests.support.pool import api_client, password_in
from tests.support.screen import Terminal
from tests.support.tiny import MODEL, SPEC, trainwright, write_project

# Prints at each step, and stays at one while a file is there.
STAYS = """\
        print("\\x1b[2Jprinted by the module")
        while self.global_step == 40 and Path({place!r}).exists():
            time.sleep(0.01)
        x, y = batch
        loss"""


@pytest.mark.slow
def test_a_run_on_a_terminal_its_ctrl_c_and_its_names_in_prefect(tmp_path: Path) -> None:
    spec = write_project(
        tmp_path / "p", {"name": "named", "train": {**SPEC["train"], "checkpoint": {"every_steps": 20}}}
    )
    stay = tmp_path / "stay"
    stay.touch()
    model = MODEL.replace("        x, y = batch\n        loss", STAYS.format(place=str(stay)))
    (spec.parent / "net.py").write_text(f"import time\nfrom pathlib import Path\n\n{model}")
    terminal = Terminal("-m", "flows.cli", "run", spec, columns=100)
    terminal.until("epoch 2, step 40")
    shown = terminal.until("\n  run       ")
    [run_id] = os.listdir(spec.parent / ".trainwright" / "runs")
    rows = [line.split()[:2] for line in shown.splitlines() if line.startswith("  ")]
    assert rows[:2] == [["validate", "ran"], ["shard", "ran"]]
    assert "running named\n" in shown
    assert "3 parquet shards: train 492 (82.0%, asked 80%)" in shown
    assert "89 %, epoch 2, step 40" in shown
    assert not terminal.screen().cursor
    terminal.type(b"\x03")
    assert terminal.end() == 130
    screen = terminal.screen()
    assert screen.cursor
    assert "running" not in screen.text
    assert "printed by the module" not in terminal.output
    assert [line.split()[:2] for line in screen.text.splitlines() if line.startswith("  train")] == [
        ["train", "cancelled"]
    ]

    stay.unlink()
    done = trainwright("resume", run_id, "--store", spec.parent / ".trainwright", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "promoted: named@champion is version 1\n"
    server = server_status()
    api = api_client(server.url, password_in(Path(os.environ["TRAINWRIGHT_HOME"])))
    runs = api.post("/flow_runs/filter", json={}).raise_for_status().json()
    assert {f"named {run_id}", f"named {run_id} resumed"} <= {run["name"] for run in runs}
    keys = {one["key"] for one in api.post("/artifacts/filter", json={}).raise_for_status().json()}
    assert "named-train-progress" in keys
