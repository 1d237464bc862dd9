"""The store goes away in the middle of training: steps go on until a checkpoint needs it, then it is waited for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.processes.processes import kill_marked, marked_env, new_mark
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.pool import until
from tests.support.s3 import S3Server
from tests.support.tiny import SPEC, write_project

STEP_S, EVERY = 0.1, 25
MODEL = f"""\
import json
import time
from pathlib import Path

import lightning as L
import torch
from torch import nn


class Net(L.LightningModule):
    def __init__(self, ledger: str):
        super().__init__()
        self.ledger, self.net = Path(ledger), nn.Linear(3, 2)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        if self.training:
            while self.global_step == {EVERY + 5} and not self.ledger.with_name("gone").exists():
                time.sleep({STEP_S})
            time.sleep({STEP_S})
            with self.ledger.open("a") as file:
                file.write(json.dumps([self.global_step + 1, time.time()]) + "\\n")
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_training_goes_on_while_the_store_is_away_and_then_waits(
    s3_server: S3Server, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    away_s = 60 if pytestconfig.getoption("--sweep") else 20
    ledger = tmp_path / "ledger"
    lightning = {
        "model": {"class_path": "net.Net", "init_args": {"ledger": str(ledger)}},
        "trainer": {"max_steps": 4 * EVERY, "max_epochs": -1},
    }
    train = {**SPEC["train"], "lightning": lightning, "checkpoint": {"every_steps": EVERY}}
    proxy = FaultProxy(s3_server.url)
    options = {**s3_server.options, "endpoint_url": proxy.url}
    store = {"uri": f"s3://{s3_server.bucket()}/store", "storage_options": options}
    spec = write_project(tmp_path / "project", {"train": train, "store": store, "promote": {"gates": []}})
    (tmp_path / "project" / "net.py").write_text(MODEL)

    def taken() -> list[tuple[int, float]]:
        return [tuple(json.loads(line)) for line in ledger.read_text().splitlines()] if ledger.exists() else []

    mark = new_mark()
    with (tmp_path / "said").open("w") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "run", str(spec), "--json"],
            env=marked_env(mark), stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: len(taken()) >= EVERY + 5, what=(tmp_path / "said").read_text)
        gone = Fault("reset", times=10**9)
        since = time.time()
        proxy.faults.append(gone)
        (tmp_path / "gone").touch()
        # A request fails for good after several tries, each after a pause, so the sentence comes some seconds later.
        until(lambda: "waiting: " in (tmp_path / "said").read_text(), what=(tmp_path / "said").read_text)
        time.sleep(max(0.0, since + away_s - time.time()))
        proxy.clear()
        back = time.time()
        answer, _ = run.communicate(timeout=480)
    finally:
        kill_marked(mark)
        proxy.stop()
    told = (tmp_path / "said").read_text()
    assert run.returncode == 0, told
    assert json.loads(answer)["verdict"] == "promoted"
    assert gone.fired > 10
    # Each step once: nothing was taken back, and no generation ended.
    assert [step for step, _ in taken()] == list(range(1, 4 * EVERY + 1))
    meanwhile = [step for step, at in taken() if since < at < back]
    # One save is on its way while training goes on; the next one waits for it.
    assert 5 < len(meanwhile) <= 2 * EVERY
    assert "waiting: " in told
