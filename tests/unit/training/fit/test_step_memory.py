"""A step is measured without its values: what autograd saves, for each kind of module."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.messages.commands import SizeRequest
from tests.support.tiny import own_modules
from training.fit.memory import probe

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
    with own_modules():
        yield tmp_path


COLUMNS = {"x": "tensor<float32>[16]", "y": "int64"}


def asked(project: Path, name: str, *, columns: dict[str, str] | None = None, **settings: Any) -> SizeRequest:
    model = {"class_path": f"kinds.{name}", "init_args": settings.pop("init_args", {})}
    lightning = {"model": model, "trainer": settings.pop("trainer", {})}
    train = {"lightning": lightning, "seed": 0, "shard_modules": None, "batch": ["x", "y"], **settings}
    return SizeRequest(train=train, project=str(project), columns=columns or COLUMNS, rows=[8, 16])


@pytest.mark.parametrize("kind", ["CNN", "LSTM", "Embedding", "Attention"])
def test_twice_the_rows_take_more(kind: str, project: Path) -> None:
    (first, second), why = probe(asked(project, kind), 10**6)
    assert why == ""
    assert (first.rows, second.rows) == (8, 16)
    assert first.step < second.step <= 2 * first.step
    assert first.peak == 10**6 + max(first.step, first.update)


def test_what_is_counted(project: Path) -> None:
    [found, _], _ = probe(asked(project, "Linear", init_args={"optimizer": "SGD"}), 0)
    batch, weight, answers = 8 * 16 * 4 + 8 * 8, 16 * 4 * 4, 8 * 4 * 4
    # The loss saves the answers' logarithms, and their gradient is as large.
    assert batch + 2 * answers <= found.step <= batch + 3 * answers
    assert found.update == batch + weight
    on_gpu = asked(project, "MLP").model_copy(update={"accelerated": True})
    assert probe(on_gpu, 0)[0][0].update > probe(asked(project, "MLP"), 0)[0][0].update


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
def test_lower_precision_takes_less(precision: str, project: Path) -> None:
    [whole, _], _ = probe(asked(project, "CNN"), 0)
    [low, _], why = probe(asked(project, "CNN", trainer={"precision": precision}), 0)
    assert why == ""
    assert low.step < whole.step


def test_the_users_transform_makes_the_batch(project: Path) -> None:
    [plain, _], _ = probe(asked(project, "MLP"), 0)
    [twice, _], _ = probe(asked(project, "MLP", transform={"call": "kinds.doubled"}), 0)
    assert twice.step > plain.step


UNPROBED: dict[str, tuple[str, dict[str, Any], str]] = {
    "it looks at a value": ("Looks", {}, "DataDependentOutputException in a step on zeros"),
    "by hand": ("ByHand", {}, "the module optimises by hand (automatic_optimization is False)"),
    "two optimizers": ("Two", {}, "the module has 2 optimizers"),
    "no loss": ("Nothing", {}, "training_step returns no loss"),
    "it raises": ("Raises", {}, "KeyError in a step on zeros"),
    "texts": ("MLP", {"columns": {"x": "string", "y": "int64"}}, "the rows of column 'x' differ in length"),
    "no such column": ("MLP", {"columns": {"y": "int64"}}, "The dataset has no column 'x'; it has y"),
}


@pytest.mark.parametrize(("name", "settings", "why"), UNPROBED.values(), ids=UNPROBED)
def test_what_cannot_be_measured_says_why(name: str, settings: dict[str, Any], why: str, project: Path) -> None:
    steps, said = probe(asked(project, name, **settings), 0)
    assert steps == []
    assert said.startswith(why)
