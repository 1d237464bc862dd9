"""How many rows a batch has, and what Lightning weights an epoch's means by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import LoaderSpec
from tests.support.splits import write_split
from tests.unit.training.score.test_metrics import ACCURACY, loader_of, scored
from training.loader import MemoryBudget, OrderedLoader, Sampling, Shards, Split, TrainLoader
from training.loader.loaders import CountRows, rows_of, with_view
from training.order import Plan

CPU = {"lightning": {"trainer": {"accelerator": "cpu"}}}
T = torch.zeros
TEXTS = ["a", "b", "c", "d"]
RAGGED = [T(3), T(5), T(0), T(2)]

# A batch of a foreign loader, and its rows; None if they are not known.
BATCHES: dict[str, tuple[Any, int | None]] = {
    "a tensor": (T(4, 3), 4),
    "no rows": (T(0, 3), 0),
    "columns": ((T(4, 3), T(4)), 4),
    "columns as DataLoader has them": ([T(4, 3), T(4)], 4),
    "a dictionary": ({"x": T(4, 3), "y": T(4)}, 4),
    "texts first": ((TEXTS, T(4)), 4),
    "texts in a dictionary": ({"text": TEXTS, "y": T(4)}, 4),
    "nothing but texts": ({"text": TEXTS}, 4),
    "lists first": ((RAGGED, T(4)), 4),
    "lists in a dictionary": ({"tokens": RAGGED, "y": T(4)}, 4),
    "inputs in a tuple": (((T(4, 3), T(4, 2)), T(4)), 4),
    "inputs in a dictionary": (({"ids": T(4, 9), "mask": T(4, 9)}, T(4)), 4),
    "a scalar beside": ({"x": T(4, 3), "temperature": T(())}, 4),
    "a number beside": ({"x": np.zeros((4, 3)), "epoch": 7}, 4),
    "samples as they are": ([{"x": T(()), "y": 1}] * 4, 4),
    "samples with images": ([{"image": T(3, 8, 8)}] * 4, None),
    "packed": ((T(100), T(4)), None),
    "nothing": ({}, None),
    "something else": (object(), None),
}


@pytest.mark.parametrize(("batch", "rows"), BATCHES.values(), ids=BATCHES)
def test_columns_must_agree_on_the_rows(batch: Any, rows: int | None) -> None:
    assert rows_of(batch, iter([]), 0) == rows


def test_a_sampler_knows_what_a_batch_does_not_say() -> None:
    images = [{"image": T(3, 8, 8)}] * 10
    loader: DataLoader = DataLoader(images, batch_size=4, collate_fn=list)  # type: ignore[arg-type]
    found = [[rows_of(batch, given, at) for at, batch in enumerate(loader)] for given in (loader, [loader])]
    assert found == [[4, 4, 2]] * 2
    assert rows_of(images[:4], {"a": None, "b": loader}, 2, loader=1) == 2


def split(tmp_path: Path, batch: Any, rows: int = 10) -> Split:
    table = pa.table(
        {
            "x": [float(at) for at in range(rows)],
            "text": [str(at) for at in range(rows)],
            "list": pa.array([[1.0] * (at % 3 + 1) for at in range(rows)], pa.list_(pa.float32())),
            "y": [at % 3 for at in range(rows)],
        }
    )
    dataset = write_split(tmp_path / "data", table, [rows])
    shards, room = Shards(tmp_path / "data", dataset, "train"), MemoryBudget(2**30, 0)
    return Split(shards, batch, None, LoaderSpec(), room, in_order=True)


class Mean(L.LightningModule):
    """Logs the mean of a column in each of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(T(1))

    def _step(self, name: str, batch: Any) -> torch.Tensor:
        x = batch[1]
        self.log(name, x.float().mean(), on_epoch=True)
        return self.weight.sum() + x.float().mean()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self._step("train", batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._step("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._step("test", batch)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.one_hot(batch[-1], 3).float()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("first", ["text", "list", "x", ["x"]])
def test_evaluate_counts_every_row_whatever_a_batch_holds_first(first: Any, tmp_path: Path) -> None:
    loader = OrderedLoader(split(tmp_path, [first, "x", "y"]), 4)
    metrics = {"logged": {"logged": "test"}, "accuracy": {**ACCURACY, "target": "y"}}
    found = scored(metrics, Mean(), {**CPU, "batch": [first, "x", "y"]}, loader)
    assert (found["logged"].value.value, found["logged"].value.rows) == (4.5, 10)
    assert (found["logged"].value.unit, found["logged"].outcomes.rows) == ("batch", [4, 4, 2])
    assert (found["accuracy"].value.value, found["accuracy"].value.rows) == (1.0, 10)


@pytest.mark.parametrize("first", ["text", "list", "x"])
def test_means_over_an_epoch_are_means_over_its_rows(first: str, tmp_path: Path) -> None:
    rows = split(tmp_path, [first, "x"])
    plan = Plan(10, 5, 1, 5, 1, 2, 0)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, callbacks=[CountRows()],
    )  # fmt: skip
    train = TrainLoader(rows, plan, Sampling("d", 0), 0)
    trainer.fit(Mean(), **with_view({"train_dataloaders": train, "val_dataloaders": OrderedLoader(rows, 4)}))
    train.close()
    assert trainer.callback_metrics["val"].item() == 4.5
    assert trainer.callback_metrics["train_epoch"].item() == 4.5


# Batches of a foreign loader that do not say how many rows they have.
PACKED = loader_of((T(100), torch.tensor([1.0, 2.0])), (T(50), torch.tensor([6.0])))


def test_a_batch_that_does_not_say_its_rows_is_refused_unless_the_step_does() -> None:
    class Said(Mean):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test", batch[1].mean(), batch_size=len(batch[1]))

    with pytest.raises(UsageError, match="batch 0 of your test_dataloader does not say how many rows it has"):
        scored({"m": {"logged": "test"}}, Mean(), source=PACKED)
    found = scored({"m": {"logged": "test"}}, Said(), source=PACKED)["m"]
    assert (found.value.value, found.value.rows, found.outcomes.rows) == (3.0, 3, [2, 1])


@pytest.mark.parametrize("target", ["0", "text"])
def test_a_target_that_is_not_a_tensor_is_refused(target: str, tmp_path: Path) -> None:
    loader = OrderedLoader(split(tmp_path, ["text", "y"]), 4)
    with pytest.raises(UsageError, match=rf"m\.target: {target} is a list in a batch, a tensor is needed"):
        scored({"m": {**ACCURACY, "target": target}}, Mean(), {**CPU, "batch": ["text", "y"]}, loader)
