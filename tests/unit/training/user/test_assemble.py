"""The Lightning config becomes objects as LightningCLI would make them; what does not fit is said in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from data_contracts.errors import UsageError, UserCodeError
from tests.support.tiny import own_modules
from training.fit.measuring import History
from training.fit.strategies import units
from training.order import Plan
from training.user.ready import (
    batch_transform,
    build_all,
    build_datamodule,
    build_module,
    in_micro_batches,
    make_ready,
    plain_trainer,
)

MODULES = """
import lightning as L
from torch import nn


class Net(L.LightningModule):
    def __init__(self, width: int = 3):
        super().__init__()
        self.save_hyperparameters()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, width), nn.Linear(width, 2)) for _ in range(2)])

    def training_step(self, batch):
        return self.blocks[0](batch).sum()


class Late(L.LightningModule):
    calls = 0

    def configure_model(self):
        self.calls += 1
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)


class Raises(L.LightningModule):
    def __init__(self):
        raise RuntimeError("on purpose")


class Data(L.LightningDataModule):
    def __init__(self, path: str, names: list[str]):
        super().__init__()
        self.path, self.names = path, names


def scale(batch, by):
    return batch * by


def scale_sample(sample, by):
    return {**sample, "x": sample["x"] * by}


def scale_pair(sample, by):
    return sample[0] * by, sample[1]
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "mine.py").write_text(MODULES)
    with own_modules():
        yield tmp_path


def train(model: str = "Net", **lightning: Any) -> dict[str, Any]:
    init = lightning.pop("init_args", {})
    return {"seed": 4, "lightning": {"model": {"class_path": f"mine.{model}", "init_args": init}, **lightning}}


def test_a_module_is_made_with_its_arguments_from_the_seed(project: Path) -> None:
    one, two = (build_module(train(init_args={"width": 5}), project) for _ in range(2))
    assert one.hparams.width == 5
    assert torch.equal(one.blocks[1][0].weight, two.blocks[1][0].weight)


def test_a_module_has_the_layers_that_it_makes_late_and_makes_them_once(project: Path) -> None:
    module = build_module(train("Late"), project)
    make_ready(module, plain_trainer(train(), []), "fit", project)
    assert list(module.state_dict()) == ["layer.weight", "layer.bias"]
    assert module.calls == 1
    later = build_module(train("Late"), project)
    loader = torch.utils.data.DataLoader(torch.zeros(1, 2))
    plain_trainer(train(), []).predict(later, loader, return_predictions=False)
    assert later.calls == 1


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({}, {}),
        ({"limit_train_batches": 1.0, "val_check_interval": 1.0}, {}),
        ({"limit_train_batches": 5}, {"limit_train_batches": 15}),
        ({"limit_train_batches": 1}, {"limit_train_batches": 3}),
        ({"limit_train_batches": 100}, {"limit_train_batches": 30}),
        (
            {"limit_train_batches": 0.55, "val_check_interval": 0.5},
            {"limit_train_batches": 15, "val_check_interval": 6},
        ),
        ({"val_check_interval": 4}, {"val_check_interval": 12}),
        ({"val_check_interval": 0.01}, {"val_check_interval": 3}),
        ({"val_check_interval": "00:10:00", "limit_train_batches": True}, {}),
    ],
    ids=str,
)
def test_what_counts_batches_counts_global_ones(trainer: dict[str, Any], expected: dict[str, int]) -> None:
    plan = Plan(165, global_batch=16, world_size=1, micro_batch=6, accumulate=3, steps_per_epoch=10, dropped_rows=5)
    assert in_micro_batches(trainer, plan) == expected


def test_the_dataset_stands_wherever_the_config_names_it(project: Path) -> None:
    data = {"class_path": "mine.Data", "init_args": {"path": "${dataset.path}/x", "names": ["${dataset.path}", "y"]}}
    made = build_datamodule(train(data=data), project, "/data")
    assert (made.path, made.names) == ("/data/x", ["/data", "y"])
    assert build_datamodule(train(), project, "/data") is None


def test_what_the_spec_owns_wins_and_the_rest_is_the_configs(project: Path, tmp_path: Path) -> None:
    callbacks = [{"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "x"}}]
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(tmp_path)}}
    config = {"max_epochs": 7, "callbacks": callbacks, "logger": logger, "accelerator": "cpu"}
    history = History()
    owned = {"devices": 1, "accumulate_grad_batches": 3, "logger": history, "enable_checkpointing": False}
    _, datamodule, trainer = build_all(train(trainer=config), project, "", owned, [])
    assert datamodule is None
    assert (trainer.max_epochs, trainer.accumulate_grad_batches, trainer.num_sanity_val_steps) == (7, 3, 0)
    assert [type(one) for one in trainer.loggers] == [CSVLogger, History], "the first is self.logger"
    assert [type(one).__name__ for one in trainer.callbacks] == ["EarlyStopping"]


def test_the_configs_optimizer_is_made_when_it_is_asked_for(project: Path) -> None:
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.25}}
    scheduler = {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 2}}
    config = train(optimizer=optimizer, lr_scheduler=scheduler)
    module, _, _ = build_all(config, project, "", {"accelerator": "cpu", "logger": False}, [])
    # Sharding replaces parameters after the module was made.
    module.blocks[0][0].weight = torch.nn.Parameter(torch.zeros(3, 2))
    [made], [schedule] = module.configure_optimizers()
    assert made.param_groups[0]["lr"] == 0.25
    assert made.param_groups[0]["params"][0] is module.blocks[0][0].weight
    assert schedule.optimizer is made


@pytest.mark.parametrize(
    ("lightning", "sentence"),
    [
        ({"model": "Nothing"}, "model.class_path: mine.Nothing was not found: module mine has no Nothing."),
        ({"model": "Data"}, "model.class_path: mine.Data is not a LightningModule."),
        ({"data": {"class_path": "mine.Net"}}, "data.class_path: mine.Net is not a LightningDataModule."),
        ({"init_args": {"wide": 1}}, "model: Option 'wide' is not accepted."),
        ({"init_args": {"width": "x"}}, "model.width: Expected a <class 'int'>. Got value: x."),
        ({"trainer": {"max_epoch": 2}}, "Group 'trainer' does not accept option 'max_epoch'."),
        ({"optimizer": {"class_path": "torch.optim.Sgd"}}, "optimizer: module 'torch.optim' has no attribute 'Sgd'."),
        ({"trainer": {"max_epochs": -2}}, "MisconfigurationException: `max_epochs` must be"),
    ],
)
def test_a_config_that_does_not_fit_is_one_sentence(lightning: dict[str, Any], sentence: str, project: Path) -> None:
    with pytest.raises(UsageError) as caught:
        build_all(train(**lightning), project, "", {"logger": False}, [])
    assert caught.value.message.startswith(f"train.lightning: {sentence}")
    assert "\n" not in caught.value.message


def test_a_module_that_raises_when_it_is_made_is_the_users(project: Path) -> None:
    with pytest.raises(UserCodeError, match="RuntimeError: on purpose") as caught:
        build_module(train("Raises"), project)
    assert "__init__" in caught.value.user_traceback
    assert "jsonargparse" not in caught.value.user_traceback


def test_a_transform_is_bound_to_its_arguments(project: Path) -> None:
    bound = batch_transform({"transform": {"call": "mine.scale", "args": {"by": 3}}}, project)
    assert bound(2) == 6
    assert batch_transform({"transform": None}, project) is None


@pytest.mark.parametrize("keys", [("x", "y"), None])
def test_a_transform_may_take_each_sample(keys: tuple[str, ...] | None, project: Path) -> None:
    call = "mine.scale_sample" if keys else "mine.scale_pair"
    bound = batch_transform({"transform": {"call": call, "args": {"by": 3}, "per": "sample"}}, project)
    columns = (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), ["a", "b"])
    made = bound(dict(zip(keys, columns, strict=True)) if keys else columns)
    x, y = (made["x"], made["y"]) if keys else made
    assert x.tolist() == [[3.0, 6.0], [9.0, 12.0]]
    assert list(y) == ["a", "b"]


@pytest.mark.parametrize(
    ("precision", "kind"),
    [("bf16-true", torch.bfloat16), ("64-true", torch.float64), ("bf16-mixed", torch.float32), (None, torch.float32)],
)
def test_a_module_has_the_type_of_a_true_precision(precision: str | None, kind: torch.dtype, project: Path) -> None:
    module = build_module(train(trainer={"precision": precision}), project)
    make_ready(module, plain_trainer(train(), []), "fit", project)
    assert {parameter.dtype for parameter in module.parameters()} == {kind}


def test_where_a_plain_trainer_is_placed_replaces_the_configs_accelerator(project: Path) -> None:
    """An export is traced on the CPU, and every starter's config names an accelerator."""
    given = train(trainer={"accelerator": "gpu", "precision": "bf16-mixed"})
    trainer = plain_trainer(given, [], {"devices": 1, "accelerator": "cpu"})
    assert (trainer.strategy.root_device.type, trainer.precision) == ("cpu", "bf16-mixed")


def test_a_plain_trainer_takes_what_a_module_may_ask_it_for(project: Path) -> None:
    trainer = plain_trainer(train(trainer={"accelerator": "cpu", "precision": "bf16-mixed", "max_epochs": 9}), [])
    assert (trainer.precision, trainer.max_epochs) == ("bf16-mixed", 9)
    # Nothing is written, and a module that writes through its logger goes on.
    assert [trainer.log_dir, trainer.logger.log_dir, trainer.logger.save_dir] == 3 * [trainer.default_root_dir]
    trainer.logger.experiment.add_image("x", None)  # type: ignore[attr-defined]
    assert (trainer.checkpoint_callback, trainer.progress_bar_callback) == (None, None)


def test_a_training_without_a_logger_says_so_once(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = build_all(train(), project, "", {"devices": 1, "logger": History(str(tmp_path))}, [])[2]
    for _ in range(2):
        trainer.logger.experiment.add_figure("x", None)  # type: ignore[attr-defined]
    [said] = [record.getMessage() for record in caplog.records if "experiment" in record.getMessage()]
    assert said.startswith("self.logger.experiment keeps nothing, because the Lightning config names no logger")
    assert [trainer.log_dir, trainer.logger.log_dir, trainer.logger.save_dir] == 3 * [str(tmp_path)]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (None, []),
        (["Linear"], ["blocks.1.1", "blocks.1.0", "blocks.0.1", "blocks.0.0"]),
        (["Linear", "Sequential"], ["blocks.1.1", "blocks.1.0", "blocks.1", "blocks.0.1", "blocks.0.0", "blocks.0"]),
        (9, ["blocks.0.0", "blocks.1.0"]),
        (17, ["blocks.0", "blocks.1"]),
        (1000, []),
    ],
)
def test_units_are_sharded_children_first(wanted: list[str] | int | None, names: list[str], project: Path) -> None:
    module = build_module(train(), project)
    paths = {part: path for path, part in module.named_modules()}
    assert [paths[unit] for unit in units(module, wanted)] == names


def test_a_module_with_parameters_of_two_types_is_refused() -> None:
    said = (
        r"train\.strategy: pair\.bias cannot be sharded: its module has parameters of several types \(bfloat16, "
        r"float32\)\. Give the module's parameters one type, or set train\.strategy: ddp without shard_modules\."
    )
    module = nn.ModuleDict({"pair": nn.Linear(3, 3)})
    module["pair"].bias = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    with pytest.raises(UsageError, match=said):
        units(module, None)
