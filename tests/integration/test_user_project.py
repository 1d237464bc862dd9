"""A user's own project, outside this repository: unmodified Lightning code with `flows/` and `tasks/` of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.files import write_files
from tests.support.tiny import SPEC, answer, report_of, statuses, succeed, trainwright, write_project

pytestmark = pytest.mark.warm

IMAGES = {
    "flows/__init__.py": "",
    "flows/augment.py": """\
def normalise(images):
    return (images - 0.5) / 0.25
""",
    "tasks/__init__.py": "",
    "tasks/stripes.py": """\
import torch


def stripes(count, seed):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=draw)
    images = 0.2 * torch.rand(count, 1, 8, 8, generator=draw)
    images[labels == 0, :, :, :4] += 0.8
    images[labels == 1, :, :, 4:] += 0.8
    return images, labels
""",
    "vision/__init__.py": "",
    "vision/data.py": """\
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

from flows.augment import normalise
from tasks.stripes import stripes


class StripesDataModule(L.LightningDataModule):
    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage=None):
        self.parts = {}
        for seed, (name, count) in enumerate({"train": 256, "val": 64, "test": 64}.items()):
            images, labels = stripes(count, seed)
            self.parts[name] = TensorDataset(normalise(images), labels)

    def train_dataloader(self):
        return DataLoader(self.parts["train"], batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts["val"], batch_size=self.batch_size)

    def test_dataloader(self):
        return DataLoader(self.parts["test"], batch_size=self.batch_size)
""",
    "vision/model.py": """\
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn


class SmallCNN(L.LightningModule):
    def __init__(self, channels: int = 8, lr: float = 0.01):
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.head = nn.Linear(4 * channels, 2)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_acc", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
""",
}

TABLE = {
    "flows/__init__.py": "COLUMNS = ['a', 'b', 'c']\n",
    "tasks/__init__.py": "",
    "tasks/reading.py": """\
from pathlib import Path

import pandas as pd
import torch
from torch.utils.data import TensorDataset

from flows import COLUMNS


def read(folder, split):
    frame = pd.concat([pd.read_parquet(path) for path in sorted(Path(folder).glob(f"{split}-*.parquet"))])
    rows = torch.tensor(frame[COLUMNS].to_numpy(), dtype=torch.float32)
    return TensorDataset(rows, torch.tensor(frame["label"].to_numpy()))
""",
    "table.py": """\
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from tasks.reading import read


class TableDataModule(L.LightningDataModule):
    def __init__(self, folder: str, batch_size: int = 32):
        super().__init__()
        self.folder, self.batch_size = folder, batch_size

    def train_dataloader(self):
        return DataLoader(read(self.folder, "train"), batch_size=self.batch_size, shuffle=True, drop_last=True)

    def test_dataloader(self):
        return DataLoader(read(self.folder, "test"), batch_size=self.batch_size)


class TableNet(L.LightningModule):
    def __init__(self, lr: float = 0.05):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_acc", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)
""",
}


def train(model: str, data: str, **data_args: Any) -> dict[str, Any]:
    """The section `train` of a spec that names a module and a data module."""
    lightning = {
        "model": {"class_path": model},
        "data": {"class_path": data, "init_args": {"batch_size": 32, **data_args}},
        "trainer": {"max_epochs": 3},
    }
    return {"lightning": lightning, "global_batch_size": 32, "strategy": "single", "seed": 7}


SCORING: dict[str, Any] = {
    "evaluate": {"metrics": {"accuracy": {"logged": "test_acc", "mode": "max"}}},
    "promote": {"gates": [{"metric": "accuracy", "min": 0.8}]},
}


def promoted(spec: Path, tmp_path: Path) -> dict[str, Any]:
    """The report of a run by path, from a working directory that is not the project."""
    report = report_of(spec, cwd=tmp_path)
    assert (report["exit_code"], report["verdict"]) == (0, "promoted")
    assert report["metrics"]["accuracy"] >= 0.8
    return report


@pytest.mark.slow
def test_images_with_batch_norm_and_data_read_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    write_files(folder, {"pyproject.toml": '[project]\nname = "images"\nversion = "0"\n', **IMAGES})
    spec = {
        "version": 1,
        "name": "images",
        "data": "external",
        "train": train("vision.model.SmallCNN", "vision.data.StripesDataModule"),
        **SCORING,
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    report = promoted(folder / "pipeline.yaml", tmp_path)
    assert statuses(report) == {
        "validate": "skipped", "shard": "skipped", "train": "ran", "verify": "ran", "evaluate": "ran", "promote": "ran",
    }  # fmt: skip
    assert report["dataset_id"] is None
    assert "the data is external" in succeed("prove", "images@champion", "--store", folder / ".trainwright").stdout


def test_a_table_read_from_the_sealed_dataset(tmp_path: Path) -> None:
    section = train("table.TableNet", "table.TableDataModule", folder="${dataset.path}")
    spec = write_project(tmp_path / "table", {"name": "table", "train": section, **SCORING})
    write_files(spec.parent, TABLE)
    report = promoted(spec, tmp_path)
    assert set(statuses(report).values()) == {"ran"}
    assert report["dataset_id"]


@pytest.mark.parametrize("name", ["training", "infra", "data_contracts"])
def test_a_package_with_one_of_our_names_is_refused_before_anything_starts(name: str, tmp_path: Path) -> None:
    model = {**SPEC["train"]["lightning"], "model": {"class_path": f"{name}.net.Net"}}
    spec = write_project(tmp_path / "mine", {"train": {**SPEC["train"], "lightning": model}})
    write_files(spec.parent, {f"{name}/__init__.py": "", f"{name}/net.py": (spec.parent / "net.py").read_text()})
    done = trainwright("run", spec, "--json", env={"PREFECT_API_URL": ""})
    assert done.returncode == 2, done.stderr
    error = answer(done)["error"]
    assert error["message"] == (
        f"{spec.parent / name}: a top-level package called {name!r} would hide Trainwright's own."
    )
    assert error["remedy"] == (
        f"Nest it: move it to mine/my_project/{name} and write my_project.{name} wherever {name} was imported or named."
    )
    assert not (spec.parent / ".trainwright" / "trainings").exists()
