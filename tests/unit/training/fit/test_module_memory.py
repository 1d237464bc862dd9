"""A module is weighed without memory for it: parameters by type, gradients, optimizer state, what FSDP gathers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from data_contracts.errors import UsageError
from data_contracts.messages.commands import ModuleSizes, SizeRequest
from tests.support.tiny import own_modules
from training.fit.memory import main

MODULES = """
import lightning as L
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)


class Net(L.LightningModule):
    def __init__(self, width: int = 10, optimizer: str = "AdamW", frozen: bool = False):
        super().__init__()
        self.optimizer = optimizer
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.outlet = nn.Linear(width, 1, bias=False)
        self.outlet.weight.requires_grad_(not frozen)
        self.register_buffer("seen", torch.zeros(3))

    def configure_optimizers(self):
        made = getattr(torch.optim, self.optimizer)(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: step / self.trainer.max_steps)
        return [made], [schedule]


class Looks(Net):
    def __init__(self):
        super().__init__()
        self.outlet.weight.sum().item()


class Lazy(Net):
    def __init__(self):
        super().__init__()
        self.outlet = nn.LazyLinear(1)


class Bare(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 10, bias=False)


class Cycles(Net):
    # Its schedule needs the length of the training, and its layers what `setup` and the data module say.
    def setup(self, stage):
        self.more = nn.Linear(self.trainer.datamodule.columns if self.trainer.datamodule else 10, 10, bias=False)

    def training_step(self, batch, batch_idx):
        return self.more(batch).sum()

    def configure_optimizers(self):
        made = torch.optim.AdamW(self.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        print("steps", steps, self.trainer.num_training_batches, len(self.trainer.train_dataloader))
        schedule = torch.optim.lr_scheduler.OneCycleLR(made, 0.1, total_steps=steps)
        return [made], [{"scheduler": schedule, "interval": "step"}]


class Data(L.LightningDataModule):
    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def setup(self, stage):
        self.columns = int(torch.tensor([float(word) for word in open(self.path).read().split()]).sum())


class Wants(Net):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1 / self.trainer.datamodule.rows)
"""
PARAMETERS = 10 * 10 * 2 + 10
STATE = 8 * (PARAMETERS + 100) + 4 * 4


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "weighed.py").write_text(MODULES)
    with own_modules():
        yield tmp_path


def weigh(
    project: Path, name: str = "Net", shard: Any = None, strict: bool | None = None, **config: Any
) -> ModuleSizes:
    model = {"class_path": f"weighed.{name}", "init_args": config.pop("init_args", {})}
    train = {"lightning": {"model": model, **config}, "seed": 0, "shard_modules": shard}
    train["init_from"] = {"strict": strict}
    begin = "" if strict is None else str(project)
    (project / "columns").write_text("4 6")
    request = SizeRequest(train=train, project=str(project), begin=begin, steps=7, dataset_path=str(project))
    return main(request, lambda report: None)


def test_a_module_with_adam(project: Path) -> None:
    assert weigh(project, trainer={"max_steps": 5}) == ModuleSizes(
        parameters=4 * PARAMETERS,
        gradients=4 * PARAMETERS,
        state=8 * PARAMETERS + 3 * 4,  # two tensors and a counter for each parameter
        buffers=12,
        unit=4 * PARAMETERS,
        layer=400,
    )


CASES: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"init_args": {"optimizer": "SGD"}}, {"state": 0}),
    ({"init_args": {"frozen": True}}, {"gradients": 800, "parameters": 4 * PARAMETERS}),
    (
        {"trainer": {"precision": "bf16-true"}},
        {"parameters": 2 * PARAMETERS, "state": 4 * PARAMETERS + 12, "layer": 200},
    ),
    ({"trainer": {"precision": "bf16-mixed"}}, {"parameters": 4 * PARAMETERS}),
    ({"trainer": {"accelerator": "gpu"}}, {"parameters": 4 * PARAMETERS}),  # this machine may have none
    ({"shard": ["Block"]}, {"unit": 400}),
    ({"shard": 150}, {"unit": 800}),
    ({"name": "Wants"}, {"state": 0, "stateless": "AttributeError: 'NoneType' object has no attribute 'rows'"}),
    ({"name": "Cycles", "trainer": {"max_epochs": 2}}, {"gradients": 4 * (PARAMETERS + 100), "state": STATE}),
    (
        {"name": "Cycles", "data": {"class_path": "weighed.Data", "init_args": {"path": "${dataset.path}/columns"}}},
        {"gradients": 4 * (PARAMETERS + 100), "state": STATE},
    ),
    (
        {"name": "Bare", "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}},
        {"state": 400},
    ),
]


@pytest.mark.parametrize(("settings", "expected"), CASES)
def test_what_decides_the_weight(settings: dict[str, Any], expected: dict[str, int], project: Path) -> None:
    found = weigh(project, **settings)
    assert {name: getattr(found, name) for name in expected} == expected


def test_memory_is_not_needed_for_it(project: Path) -> None:
    assert weigh(project, init_args={"width": 10**6}).parameters == 4 * (2 * 10**12 + 10**6)


def test_a_module_that_looks_at_its_weights_is_not_weighed(project: Path) -> None:
    found = weigh(project, "Looks")
    assert found == ModuleSizes(unknown=found.unknown)
    assert "meta" in found.unknown


def test_what_the_first_weights_would_give_it(project: Path) -> None:
    given = {"_orig_mod.blocks.0.linear.weight": torch.ones(10, 10), "head": torch.ones(1)}
    save_file(given, project / "w.safetensors")
    assert weigh(project, strict=False).begun_with == (
        "1 tensor loaded, 3 missing (blocks.1.linear.weight, outlet.weight, seen), 1 unexpected (head)"
    )
    with pytest.raises(UsageError, match=r"train\.init_from does not fit Net: 1 tensor loaded, 3 missing"):
        weigh(project, strict=True)


def test_a_lazy_module_is_not_weighed(project: Path) -> None:
    assert "lazy parameters" in weigh(project, "Lazy").unknown


def test_a_schedule_is_told_the_length_of_the_training(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert weigh(project, "Cycles", trainer={"max_epochs": 3}).stateless == ""
    assert "steps 21 7 7\n" in capsys.readouterr().out
