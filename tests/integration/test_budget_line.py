"""A training that a budget stops in flight: exit 7 after a sealed checkpoint; raised, it ends as always."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from data_contracts.handoffs import Checkpoint
from infra.gang.ledger import committed
from infra.store import layout, open_store
from tasks.budgets import balances_of_month
from tasks.costs.sums import charged
from tasks.run.meter import usage_of
from tests.support.tiny import MODEL, SPEC, trainwright, write_project

# Says when it has reached step 20, and is slow from then on while it may be.
SLOW = """
    def on_train_batch_end(self, outputs, batch, batch_idx):
        import time
        from pathlib import Path

        place = Path(self.place)
        if self.global_step >= 20 and (place / "slow").exists():
            (place / "there").touch()
            time.sleep(2)
"""


def project(folder: Path) -> Path:
    """The tiny project with that module; only a stop saves a checkpoint before the end."""
    model = {"class_path": "net.Net", "init_args": {"lr": 0.05, "place": str(folder)}}
    train = {**SPEC["train"], "lightning": {"model": model, "trainer": {"max_epochs": 3}}}
    spec = write_project(folder / "project", {"train": {**train, "checkpoint": {"every_steps": 1000}}})
    source = MODEL.replace("lr: float = 0.05", 'lr: float = 0.05, place: str = ""')
    source = source.replace("self.lr = lr\n", "self.lr = lr\n        self.place = place\n")
    (folder / "project" / "net.py").write_text(source.rstrip() + "\n" + SLOW)
    return spec


def apply(folder: Path, hours: float) -> None:
    file = folder / "budgets.yaml"
    limit = f"  any: {{per: run, limit: {{hours: {hours}}}}}\n"
    file.write_text(f"version: 1\nevery_s: 0.4\nbudgets:\n{limit}")
    done = trainwright("budget", "apply", file, "--store", folder / "project/.trainwright")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_it_is_stopped_in_flight_and_ends_as_if_nothing_had_been(tmp_path: Path, repository: Path) -> None:
    spec, store_path = project(tmp_path), tmp_path / "project/.trainwright"
    assert trainwright("store", "init", store_path).returncode == 0
    apply(tmp_path, hours=10)
    (tmp_path / "slow").touch()
    command = [sys.executable, "-m", "flows.cli", "run", str(spec), "--json"]
    env = {**os.environ, "PYTHONPATH": str(repository)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 480
    while not (tmp_path / "there").exists():
        assert process.poll() is None, process.communicate()
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"the training did not begin: {process.communicate()}")
        time.sleep(0.05)
    apply(tmp_path, hours=0.0001)
    out, err = process.communicate()
    assert process.returncode == 7, err
    told: dict[str, Any] = json.loads(out)
    assert (told["verdict"], told["error"]["cause"]) == ("over_budget", "over_budget")
    assert "The budget any (all runs, " in err
    assert told["budgets"], "the report has the warning"
    store = open_store(str(store_path), create=False)
    [training] = store.list("trainings")
    [checkpoint] = committed(store, f"trainings/{training}")[0]
    assert 20 <= checkpoint.step < 45, "a checkpoint of the moment of the stop"

    refused = trainwright("resume", told["run_id"], "--store", store_path)
    assert refused.returncode == 7, refused.stderr
    assert store.list(f"trainings/{training}").count("g1") == 0, "nothing was launched"
    (tmp_path / "slow").unlink()
    apply(tmp_path, hours=10)
    resumed = trainwright("resume", told["run_id"], "--store", store_path, "--json")
    assert resumed.returncode == 0, resumed.stderr
    other = trainwright("run", spec, "--store", tmp_path / "other", "--json")
    assert other.returncode == 0, other.stderr
    found, expected = (json.loads(one.stdout) for one in (resumed, other))
    assert found["metrics"] == expected["metrics"]
    assert handed_over(store_path) == handed_over(tmp_path / "other"), "weights, losses and state, byte for byte"

    run_id = told["run_id"]
    [standing] = [one for one in balances_of_month(store, f"{run_id[:4]}-{run_id[4:6]}")[0] if one.period == run_id]
    usage = usage_of(store, run_id)
    total = sum(charge.node_seconds for _, charge in charged(usage.executions, 0.0, 2e11)) / 3600
    assert (standing.spent, standing.reserved) == (pytest.approx(total, abs=1e-9), 0)
    assert len(usage.executions) == 3


def handed_over(store_path: Path) -> str:
    """The id of the checkpoint that the training handed over: a digest of all its bytes."""
    store = open_store(str(store_path), create=False)
    [training] = store.list("trainings")
    checkpoint = store.read_as(layout.result(f"trainings/{training}"), Checkpoint.from_json)
    return store.verify(checkpoint.ref).id
