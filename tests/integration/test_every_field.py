"""One spec that uses the fields the other tests leave alone: each is carried out, seen in what it makes."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.tiny import SPEC, answer, trainwright, write_project

pytestmark = pytest.mark.warm

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 800  # one an hour: 33 days and 8 hours

FEATURES = '''\
import pyarrow as pa
import pyarrow.compute as pc


def narrow(batch, names):
    """float64, which TFRecord cannot hold, to float32; rows without a value are left out."""
    batch = batch.filter(pc.is_valid(batch["a"]))
    columns = {n: batch[n].cast(pa.float32()) if n in names else batch[n] for n in batch.schema.names}
    return pa.record_batch(columns)


def scaled(batch, by):
    """A batch of the loader: a dictionary of tensors."""
    return {**batch, "x": batch["x"] * by}
'''

NET = """\
import lightning as L
import torch
from torch import nn


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)

    def step(self, batch, name):
        assert batch["x"].abs().max() <= 0.5, "train.transform halves every feature"
        assert len(batch["y"]) <= 8 or name != "train", "micro_batch_size"
        loss = nn.functional.cross_entropy(self(batch["x"]), batch["y"])
        self.log(f"{name}_loss", loss)
        return loss

    def training_step(self, batch, batch_idx):
        return self.step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self.step(batch, "val")

    def test_step(self, batch, batch_idx):
        self.step(batch, "test")

    def predict_step(self, batch, batch_idx):
        return {"logits": self(batch["x"])}
"""


def write_events(path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    with path.open("w") as file:
        for hour in range(count):
            a, b, c = (round(draw.uniform(-1, 1), 6) for _ in range(3))
            when = (BEGIN + timedelta(hours=hour)).isoformat()
            row = {"a": None if hour % 100 == 0 else a, "b": b, "c": c, "label": int(a + b > c), "at": when}
            file.write(json.dumps({**row, "email": f"person{hour}@example.org"}) + "\n")


ACCURACY = {**SPEC["evaluate"]["metrics"]["accuracy"], "target": "y", "prediction": "logits"}
F1 = {"class_path": "torchmetrics.classification.MulticlassF1Score", "init_args": {"num_classes": 2}}
PREDICTED = {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "logits", "value_set": [0, 1]}}
FIELDS = {
    "data": {
        "source": "events/*.jsonl",
        "window": {"column": "at"},
        "sensitive": ["email"],
        "memory_share": 0.9,
    },
    "contract": {
        "fail_on": "critical",
        "quarantine": {"max_share": 0.01},
        "predictions": {"suite": {"name": "predictions", "expectations": [PREDICTED]}},
        "suite": {
            "name": "events",
            "expectations": [
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "email"}},
                {
                    "type": "expect_column_values_to_not_match_regex",
                    "kwargs": {"column": "email", "regex": "^person[16]50@"},
                },
                {
                    "type": "expect_column_values_to_not_match_regex",
                    "kwargs": {"column": "email", "regex": "^person[5]"},
                    "severity": "warning",
                },
            ],
        },
    },
    "shards": {
        "format": "tfrecord",
        "target_size_bytes": 16384,
        "split": {
            "time": "at",
            "boundaries": {"val": "2026-01-21T00:00:00Z", "test": "2026-01-26T00:00:00Z"},
            "gap_s": 7200,
        },
        "transform": {"call": "features.narrow", "args": {"names": ["a", "b", "c"]}},
    },
    "train": {
        "lightning": {
            "model": {"class_path": "nets.Net"},
            "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.05}},
            "trainer": {"max_epochs": 4, "accelerator": "cpu"},
        },
        "global_batch_size": 32,
        "micro_batch_size": 8,
        "strategy": "single",
        "batch": {"x": ["a", "b", "c"], "y": "label"},
        "transform": {"call": "features.scaled", "args": {"by": 0.5}},
        "loader": {
            "shuffle": "block",
            "block_rows": 40,
            "window_blocks": 2,
            "memory_bytes": 2**20,
            "cache_bytes": 0,
        },
        "select": {"metric": "val_loss", "mode": "min"},
        "checkpoint": {"every_steps": 5, "every_s": "auto", "keep": 1},
        "seed": 3,
    },
    "evaluate": {
        "metrics": {
            "accuracy": ACCURACY,
            "f1": {**F1, "target": "y", "prediction": "logits", "mode": "max"},
            "loss": {"logged": "test_loss", "mode": "min"},
        },
        "sets": {"recent": {"split": "val"}, "other": {"source": "more/*.jsonl"}},
        "batch_size": 50,
    },
    "promote": {
        "model": "events-net",
        "alias": "staging",
        "gates": [{"metric": "other/accuracy", "min": 0.5}, {"metric": "loss", "max": 1.0}],
    },
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fields")
    path = write_project(folder, FIELDS)
    (folder / "features.py").write_text(FEATURES)
    (folder / "nets.py").write_text(NET)
    for name, count, seed in (("events", ROWS, 1), ("more", 120, 2)):
        (folder / name).mkdir()
        write_events(folder / name / "part.jsonl", count, seed)
    return path


def stage(spec: Path, name: str, window: str = "2026-01-01..2026-02-01", *more: str) -> dict:
    done = trainwright(name, spec, "--window", window, *more, "--json")
    assert done.returncode == 0, done.stderr
    assert "@example.org" not in done.stdout + done.stderr
    return answer(done)["handoff"]


def test_every_field_is_carried_out(spec: Path) -> None:
    report = stage(spec, "validate")
    assert report["rows"] == 31 * 24
    [warning] = report["failures"]
    assert (warning["severity"], warning["rows"]) == ("warning", 111)  # 5, 50 to 59, 500 to 599
    assert set(warning["values"]) == {"•••"}
    assert (report["quarantine"]["rows"], report["quarantine"]["broken"][0]["row_numbers"]) == (2, [150, 650])

    dataset = stage(spec, "shard")
    rows = {name: sum(shard["rows"] for shard in shards) for name, shards in dataset["splits"].items()}
    # 20, 5 and 6 days of 24 rows, less two hours before each boundary, less the nulls at hours 0, 100, 200, …, less
    # hours 150 and 650, which are quarantined
    assert rows == {"train": 480 - 2 - 5 - 1, "val": 120 - 2 - 1, "test": 144 - 2 - 1}
    assert dataset["dropped_rows"] == {"gap": 4, "quarantined": 2}
    assert all(shard["path"].endswith(".tfrecord") for shards in dataset["splits"].values() for shard in shards)
    assert len(dataset["splits"]["train"]) > 1

    checkpoint = stage(spec, "train")
    kept = [path.name for path in (spec.parent / ".trainwright" / checkpoint["training"] / "checkpoints").iterdir()]
    assert f"{checkpoint['step']}-g0" in kept
    assert len(kept) <= 2, "the newest, and the one selected"
    assert "val_loss" in checkpoint["metrics"]
    stage(spec, "verify")

    evaluation = stage(spec, "evaluate")
    assert set(evaluation["predictions"]) == {"", "recent", "other"}
    assert all(one["columns"] == ["logits", "logits_0", "logits_1"] for one in evaluation["predictions"].values())
    metrics = evaluation["metrics"]
    assert set(metrics) == {f"{name}{m}" for name in ("", "recent/", "other/") for m in ("accuracy", "f1", "loss")}
    assert {name: metrics[name]["rows"] for name in ("accuracy", "recent/accuracy", "other/accuracy")} == {
        "accuracy": rows["test"],
        "recent/accuracy": rows["val"],
        "other/accuracy": 120 - 2,
    }
    assert (metrics["accuracy"]["unit"], metrics["loss"]["unit"]) == ("row", "batch")
    outcomes = pq.read_table(spec.parent / ".trainwright" / evaluation["ref"]["uri"] / "outcomes.parquet")
    mine = outcomes.filter(outcomes.column("metric").to_numpy(zero_copy_only=False) == "accuracy")
    assert mine.num_rows == rows["test"]

    receipt = stage(spec, "promote")
    assert (receipt["decision"], receipt["model"], receipt["alias"]) == ("promoted", "events-net", "staging")
    assert receipt["quarantined_rows"] == 2


def test_another_window_is_other_data(spec: Path) -> None:
    assert stage(spec, "validate", "2026-01-01..2026-01-03")["rows"] == 48
    done = trainwright("validate", spec)
    assert (done.returncode, "--window" in done.stderr) == (2, True)
