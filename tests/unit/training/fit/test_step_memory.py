"""A step is measured without its values: the same bytes as in a step that is taken, for each kind of module."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.messages.commands import SizeRequest, StepMemory
from training.fit.memory import REAL_ROWS, _step, probe

KINDS = """
import torch
from module_zoo import *


class Looks(MLP):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (2 if loss.item() > 100 else 1)


class ByHand(MLP):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Two(MLP):
    def configure_optimizers(self):
        return [super().configure_optimizers(), super().configure_optimizers()]


class Nothing(MLP):
    def training_step(self, batch, batch_idx):
        return None


class Raises(MLP):
    def training_step(self, batch, batch_idx):
        raise KeyError("a value that nobody needs to read")


def doubled(batch):
    return [torch.cat([part, part]) for part in batch]
"""


@pytest.fixture
def project(tmp_path: Path, repository: Path) -> Iterator[Path]:
    (tmp_path / "kinds.py").write_text(KINDS)
    shutil.copy(repository / "tests/support/module_zoo.py", tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    for name in ("kinds", "module_zoo"):
        sys.modules.pop(name, None)


COLUMNS = {"x": "tensor<float32>[16]", "y": "int64"}


def asked(project: Path, name: str, *, columns: dict[str, str] | None = None, **settings: Any) -> SizeRequest:
    model = {"class_path": f"kinds.{name}", "init_args": settings.pop("init_args", {})}
    lightning = {"model": model, "trainer": settings.pop("trainer", {})}
    train = {"lightning": lightning, "seed": 0, "shard_modules": None, "batch": ["x", "y"], **settings}
    return SizeRequest(train=train, project=str(project), columns=columns or COLUMNS, rows=[8, 16])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("MLP", {"optimizer": "Adam"}),
        ("CNN", {"optimizer": "SGD"}),
        ("CNN", {"optimizer": "SGD", "norm": True}),
        ("LSTM", {"optimizer": "AdamW"}),
        ("Embedding", {"optimizer": "Adam"}),
        ("Attention", {"optimizer": "AdamW"}),
    ],
)
def test_the_same_bytes_as_in_a_real_step(kind: str, settings: dict[str, Any], project: Path) -> None:
    request = asked(project, kind, init_args=settings)
    (first, second), why = probe(request, 0)
    assert why == ""
    taken = _step(request, 8, real=True)
    assert first == taken
    assert (second.rows, second.step > first.step) == (16, True)


def test_a_cpus_lstm_keeps_more_than_fake_tensors_show(project: Path) -> None:
    request = asked(project, "LSTM", init_args={"width": 64})
    [as_on_cpu, _], _ = probe(request, 0)
    assert as_on_cpu.step > 2 * _step(request, 8).step
    assert probe(request, 10**12)[0][0] == _step(request, 8), "a large module is not trained before a run"
    assert probe(request.model_copy(update={"accelerated": True}), 0)[0][0].step < as_on_cpu.step


def test_what_is_counted(project: Path) -> None:
    [found, _], _ = probe(asked(project, "Linear", init_args={"optimizer": "SGD"}), 0)
    weight, batch, answers = 16 * 4 * 4, 8 * 16 * 4 + 8 * 8, 8 * 4 * 4
    # At the end of the forward pass: the weight with gradient and momentum, the batch, the loss and its share of rows.
    assert found.peak >= 3 * weight + batch + 2 * answers
    assert found.peak <= 3 * weight + batch + 4 * answers
    assert found.update == batch


def test_memory_is_not_needed_for_it(project: Path) -> None:
    columns = {"x": "tensor<float32>[16]", "y": "int64"}
    request = asked(project, "MLP", columns=columns).model_copy(update={"rows": [2, 10**6]})
    assert probe(request, 0)[0][1].peak > 10**6 * 32 * 4


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
def test_lower_precision_takes_less(precision: str, project: Path) -> None:
    [whole, _], _ = probe(asked(project, "CNN"), 0)
    [low, _], why = probe(asked(project, "CNN", trainer={"precision": precision}), 0)
    assert why == ""
    assert low.step < whole.step
    assert (low.peak < 0.7 * whole.peak) == precision.endswith("true")


def test_a_module_that_looks_at_values_takes_real_steps_if_it_is_small(project: Path) -> None:
    steps, why = probe(asked(project, "Looks"), 0)
    assert ([one.rows for one in steps], why) == (list(REAL_ROWS), "")
    assert probe(asked(project, "Looks"), 10**12) == ([], "DataDependentOutputException in a step on zeros")


def test_the_users_transform_makes_the_batch(project: Path) -> None:
    [plain, _], _ = probe(asked(project, "MLP"), 0)
    [twice, _], _ = probe(asked(project, "MLP", transform={"call": "kinds.doubled"}), 0)
    assert twice.step > plain.step


UNPROBED: dict[str, tuple[str, dict[str, Any], str]] = {
    "by hand": ("ByHand", {}, "the module optimises by hand (automatic_optimization is False)"),
    "two optimizers": ("Two", {}, "the module has 2 optimizers"),
    "no loss": ("Nothing", {}, "training_step returns no loss"),
    "it raises": ("Raises", {}, "KeyError in a step on zeros"),
    "texts": ("MLP", {"columns": {"x": "string", "y": "int64"}}, "the rows of column 'x' differ in length"),
    "no such column": ("MLP", {"columns": {"y": "int64"}}, "The dataset has no column 'x'; it has y"),
}


@pytest.mark.parametrize("case", UNPROBED)
def test_what_cannot_be_measured_says_why(case: str, project: Path) -> None:
    name, settings, why = UNPROBED[case]
    steps, said = probe(asked(project, name, **settings), 0)
    assert steps == []
    assert said.startswith(why)


def test_an_accelerator_updates_all_parameters_at_once(project: Path) -> None:
    request = asked(project, "MLP")
    assert isinstance(_step(request.model_copy(update={"accelerated": True}), 8), StepMemory)
