"""A training and what follows it are tried on few rows: what would fail later is named with the user's line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from data_contracts.errors import TrainwrightError, UsageError, UserCodeError
from data_contracts.handoffs import Dataset, Ref
from data_contracts.messages.children import ScoredSet, ShakedownRequest, Shaken
from infra.records.handoffs import beginning
from tests.support.gang import make_dataset
from tests.support.tiny import own_modules
from training.shakedown import main

MODULES = '''
import json
from pathlib import Path

import lightning as L
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F


class Good(L.LightningModule):
    """Two logits a row."""

    def __init__(self, features: int = 4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Scheduled(Good):
    """Its schedule needs the training's whole length, and its plateau what validation logs."""

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        steps = self.trainer.estimated_stepping_batches
        Path("seen.json").write_text(json.dumps([steps, self.trainer.num_training_batches]))
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps // 4)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return [optimizer], [
            {"scheduler": cycle, "interval": "step"}, {"scheduler": plateau, "monitor": "val_loss"},
        ]


class Lazy(Good):
    """Its first layer gets its width from the rows."""

    def __init__(self):
        super().__init__()
        self.net[0] = nn.LazyLinear(8)


class Plateau(Good):
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "val_los"}]


class Patient(Good):
    """Its plateau looks every `frequency` epochs at what validation logs."""

    def __init__(self, frequency: int = 1):
        super().__init__()
        self.frequency = frequency

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return [optimizer], [{"scheduler": plateau, "monitor": "val_loss", "frequency": self.frequency}]


class Logs(Good):
    """It has loggers of its own, which must not hear of a shakedown."""

    def training_step(self, batch, batch_idx):
        self.loggers[1].experiment.add_scalar("x", 1)
        Path(self.loggers[1].log_dir).joinpath("pictures").mkdir(parents=True)
        return super().training_step(batch, batch_idx)


class Validates(Good):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.mse_loss(self(batch[0]), batch[1].flaot()))


class OneRow(Good):
    """Its validation and test step cannot take one row, which they never get."""

    def validation_step(self, batch, batch_idx):
        assert len(batch[1]) > 1
        super().validation_step(batch, batch_idx)


class Squeezes(Good):
    def predict_step(self, batch, batch_idx):
        return self(batch[0]).squeeze()


class Column(Good):
    def predict_step(self, batch, batch_idx):
        return self(batch[0]).softmax(1)[:, 1:]


class TwoInputs(Good):
    def forward(self, x, length):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))


class Forgets(Good):
    """A checkpoint of it does not fit it."""

    def on_save_checkpoint(self, checkpoint):
        del checkpoint["state_dict"]["net.0.weight"]


class Late(Good):
    def on_fit_start(self):
        self.register_buffer("counts", torch.zeros(2))


class Holds(Good):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["here"] = object()


class Branches(Good):
    def forward(self, x):
        return self.net(x) if x.sum() > 0 else -self.net(x)


class Words(Good):
    def predict_step(self, batch, batch_idx):
        return ["yes" for _ in batch[1]]


class Needs(Good):
    def setup(self, stage):
        torch.distributed.barrier()


class Ten(torchmetrics.Metric):
    def __init__(self):
        super().__init__()
        self.add_state("rows", torch.tensor(0))

    def update(self, prediction, target):
        self.rows += len(target)

    def compute(self):
        if self.rows < 1_000:
            raise ValueError("it takes 1,000 rows")
        return self.rows.float()


class Typo(Ten):
    def compute(self):
        return self.row.float()
'''
ACCURACY = {
    "class_path": "torchmetrics.classification.MulticlassAccuracy",
    "init_args": {"num_classes": 2, "average": "micro"},
    "target": "y",
    "mode": "max",
}
CORRELATION = {"class_path": "torchmetrics.classification.BinaryAUROC", "target": "y", "mode": "max"}
LOSS = {"logged": "test_loss", "mode": "min"}
BY_LOSS = {"select": {"metric": "val_loss", "mode": "min"}}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/shaken.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path / "project")
    with own_modules():
        yield tmp_path / "project"


def shaken(
    project: Path,
    name: str = "Good",
    *,
    metrics: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    rows: dict[str, int] | None = None,
    whole: bool = True,
    **more: Any,
) -> Shaken:
    """What a shakedown of a module says."""
    folder = project.parent / "dataset"
    dataset = Dataset.from_json(make_dataset(folder, rows or {"train": 640, "val": 16, "test": 9}))
    train_rows = dataset.rows("train")
    if not whole:
        dataset = beginning(dataset)
        for file in folder.glob("*-00001.parquet"):
            file.unlink()
    model = {"class_path": f"shaken.{name}", **more.pop("model", {})}
    settings = {
        "lightning": {"model": model, "trainer": {"accelerator": "cpu", "max_epochs": 3, **(trainer or {})}},
        "global_batch_size": 32,
        "strategy": "single",
        "batch": ["x", "y"],
        "seed": 1,
        **(train or {}),
    }
    code = Ref(uri="code/a", id="a" * 64, seal="b" * 64)
    request = ShakedownRequest(
        train=settings,
        dataset=dataset,
        train_rows=train_rows,
        whole=whole,
        evaluate={"metrics": metrics or {"accuracy": ACCURACY, "loss": LOSS}, "batch_size": 4},
        sets={"": ScoredSet(dataset=dataset, split="test")},
        code=code,
        paths={code.id: str(project), dataset.ref.id: str(folder)},
        **more,
    )
    return main(ShakedownRequest.from_json(json.loads(json.dumps(request.to_json()))), lambda report: None)


RIGHT: dict[str, dict[str, Any]] = {
    "a plain module": {},
    "a forward of predictions": {"name": "Column", "metrics": {"a": CORRELATION}, "predictions": True},
    "lazy layers": {"name": "Lazy"},
    "no metric that needs predictions": {"metrics": {"loss": LOSS}},
    "validation never has one row": {"name": "OneRow"},
    "loggers of the user's": {
        "name": "Logs",
        "trainer": {"logger": [{"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "x"}}]},
    },
    "micro-batches of several ranks": {"train": {"strategy": "ddp", "devices": 4, "micro_batch_size": 2}},
    "sharded": {"train": {"strategy": "fsdp", "devices": 2, "shard_modules": ["Linear"]}},
    "the last epoch comes first": {"trainer": {"max_epochs": 1, "min_epochs": 1, "check_val_every_n_epoch": 5}},
    "validation by steps": {"trainer": {"val_check_interval": 7, "limit_val_batches": 0.5}},
    "a selection": {"train": BY_LOSS, "trainer": {"check_val_every_n_epoch": 3}},
    "a selection in the last step": {"train": BY_LOSS, "trainer": {"max_steps": 40, "check_val_every_n_epoch": 2}},
    "a selection within an epoch": {"train": BY_LOSS, "trainer": {"max_steps": 5, "val_check_interval": 5}},
    "a plateau after each validation": {
        "name": "Patient",
        "model": {"init_args": {"frequency": 2}},
        "trainer": {"check_val_every_n_epoch": 2},
    },
    "a plateau that is never asked": {
        "name": "Patient",
        "model": {"init_args": {"frequency": 4}},
        "trainer": {"check_val_every_n_epoch": 5},
    },
    "an export": {"exports": ["torch"]},
}
IN_FRESH_PROCESS = {"an export"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in IN_FRESH_PROCESS else []) for case in RIGHT]
)
def test_what_will_run_passes(project: Path, case: str) -> None:
    assert shaken(project, **RIGHT[case]).remarks == []
    assert not (project / "x").exists()


PLACE = r"in shaken\.py:\d+, with a batch of float32 \[\d+, 4\], int64 \[\d+\]"
WRONG: dict[str, tuple[dict[str, Any], type[TrainwrightError], str]] = {
    "arguments of the module": ({"model": {"init_args": {"feature": 4}}}, UsageError, "feature"),
    "a shape": ({"model": {"init_args": {"features": 5}}}, UserCodeError, f"32x4 and 5x8.*{PLACE}"),
    "validation": ({"name": "Validates"}, UserCodeError, f"flaot.*{PLACE}"),
    "validation of one row": (
        {"name": "OneRow", "rows": {"train": 640, "val": 33, "test": 9}}, UserCodeError, r"int64 \[1\]",
    ),
    "a monitor": ({"name": "Plateau"}, UsageError, "val_los.*not available"),
    "a plateau between validations": (
        {"name": "Patient", "trainer": {"check_val_every_n_epoch": 2}}, UsageError,
        "ReduceLROnPlateau .*val_loss at the end of epoch 1, .*check_val_every_n_epoch",
    ),
    "a selection by nothing": (
        {"train": {"select": {"metric": "val_los", "mode": "min"}}}, UsageError,
        "train.select.metric: val_los was not logged.*val_loss",
    ),
    "a selection without a validation": (
        {"train": BY_LOSS, "trainer": {"check_val_every_n_epoch": 4}}, UsageError, "val_loss .*first validation",
    ),
    "a selection after the last step": (
        {"train": BY_LOSS, "trainer": {"max_steps": 19}}, UsageError, "val_loss .*first validation",
    ),
    "no step": ({"trainer": {"max_epochs": 0}}, UsageError, "without a single step"),
    "too few rows": ({"rows": {"train": 8, "test": 8}}, UsageError, "fewer than train.global_batch_size"),
    "a squeeze": ({"name": "Squeezes"}, UsageError, r"shape \(2,\) for a batch of 1 row"),
    "arguments of forward": ({"name": "TwoInputs"}, UsageError, "forward takes x, length"),
    "no tensor": ({"name": "Words"}, UsageError, "predict_step returns a list, a tensor is needed"),
    "no table": ({"name": "Words", "metrics": {"loss": LOSS}, "predictions": True}, UsageError, "contract.predictions"),
    "several numbers": (
        {"metrics": {"a": {**ACCURACY, "init_args": {"num_classes": 2, "average": "none"}}}}, UsageError, "2 numbers",
    ),
    "several numbers beside a metric without a value": (
        {"metrics": {"t": {"class_path": "shaken.Ten", "target": "y", "mode": "max"},
                     "a": {**ACCURACY, "init_args": {"num_classes": 2, "average": "none"}}}}, UsageError, "2 numbers",
    ),
    "a metric's arguments": ({"metrics": {"a": {**ACCURACY, "init_args": {"classes": 2}}}}, UsageError, "classes"),
    "a metric's own code": (
        {"metrics": {"t": {"class_path": "shaken.Typo", "target": "y", "mode": "max"}}}, UserCodeError, "row",
    ),
    "a name that is not logged": ({"metrics": {"l": {**LOSS, "logged": "loss"}}}, UsageError, "logs no loss"),
    "a checkpoint that cannot be held": ({"name": "Holds"}, UsageError, "here is a object"),
    "a checkpoint without a weight": (
        {"name": "Forgets"}, UsageError, r"train\.lightning: .*net\.0\.weight.*in the constructor, setup or",
    ),
    "a buffer of a late hook": (
        {"name": "Late"}, UsageError, r"train\.lightning: .*has no counts.*in the constructor, setup or",
    ),
    "an export": ({"name": "Branches", "exports": ["torch"]}, UserCodeError, r"promote\.export: torch\.export cannot"),
    "no ranks here": ({"name": "Needs"}, UserCodeError, "process group"),
}  # fmt: skip


@pytest.mark.parametrize("width", [4, 5])
def test_lazy_layers_get_their_shapes_before_the_first_weights(project: Path, width: int) -> None:
    (project / "weights").mkdir()
    save_file({"net.0.weight": torch.ones(8, width)}, project / "weights/model.safetensors")
    begin = {"weights": "weights", "digest": f"sha256:{'a' * 64}", "strict": False}
    fits = pytest.raises(UsageError, match=r"\[8, 5\] for float32 \[8, 4\]") if width == 5 else nullcontext()
    with fits:
        assert shaken(project, "Lazy", train={"init_from": begin}, first_weights=str(project / "weights")) == Shaken()


@pytest.mark.parametrize(("given", "kind", "sentence"), WRONG.values(), ids=WRONG)
def test_what_would_fail_later_fails_now(
    project: Path, given: dict[str, Any], kind: type[TrainwrightError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        shaken(project, **given)


def test_a_schedule_sees_the_length_of_the_whole_training(project: Path) -> None:
    assert shaken(project, "Scheduled", train={"micro_batch_size": 8}) == Shaken()
    assert json.loads((project / "seen.json").read_text()) == [60, 80]


def test_what_a_metric_says_of_few_rows_ends_nothing(project: Path) -> None:
    found = shaken(project, metrics={"t": {"class_path": "shaken.Ten", "target": "y", "mode": "max"}})
    assert len(found.remarks) == 1
    assert "it takes 1,000 rows" in found.remarks[0]


def test_what_only_the_trainings_ranks_have_is_not_tried(project: Path) -> None:
    [remark] = shaken(project, "Needs", train={"devices": 2, "strategy": "ddp"}).remarks
    assert remark.startswith("Not all can be tried on this machine: ")
    assert "process group" in remark


def test_the_first_shards_are_enough(project: Path) -> None:
    assert shaken(project, whole=False) == Shaken()
