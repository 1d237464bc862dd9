"""What is read of a real training: the loss, the norm of the whole gradient, and the share of the device's peak."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.lightning_training import Batches, Net, quiet_trainer
from training.fit import measuring
from training.fit.measuring import ActivityCallback, Measuring
from training.fit.reports import Reports


def trained(tmp_path: Path, **settings: Any) -> tuple[Reports, float]:
    """The reports of a training over two equal batches, and the loss before its first step."""
    reports = Reports(tmp_path, 0, 1.0)
    measure = Measuring(reports)
    trainer: Any = quiet_trainer(callbacks=[ActivityCallback(reports), measure], **settings)
    module = Net([])
    module.flops_per_batch = 1e9  # type: ignore[assignment]
    loss = float(module.layer(torch.ones(3, 1)).sum())
    trainer.fit(module, Batches())
    measure.read(trainer)
    return reports, loss


def test_the_newest_loss_and_the_norm_are_read(tmp_path: Path) -> None:
    reports, first = trained(tmp_path)
    measured = reports.measures.record({})
    assert measured.loss < first
    # The gradient of 3 w + 3 b.
    assert measured.gradient_norm == pytest.approx(3 * 2**0.5)
    assert measured.mfu is None  # nothing is known of this processor's peak


def test_the_loss_is_that_of_a_micro_batch_also_where_gradients_accumulate(tmp_path: Path) -> None:
    reports, first = trained(tmp_path, accumulate_grad_batches=2)
    assert reports.measures.loss == pytest.approx(first)


def test_mfu_is_the_share_of_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "get_available_flops", lambda device, dtype: 1e15)
    reports, _ = trained(tmp_path)
    assert 0 < reports.measures.mfu < 1


def test_only_the_loss_of_what_a_step_returned_is_kept(tmp_path: Path) -> None:
    measure, logits = Measuring(Reports(tmp_path, 0, 1.0)), torch.zeros(3)
    kept = weakref.ref(logits)
    outputs = {"loss": torch.ones(()), "logits": logits}
    measure.on_train_batch_end(None, None, outputs, None, 0)  # type: ignore[arg-type]
    del logits, outputs
    assert kept() is None
    measure.read(SimpleNamespace(accumulate_grad_batches=1))  # type: ignore[arg-type]
    assert measure._reports.measures.loss == 1.0


@pytest.mark.parametrize(
    ("gradients", "norm"),
    [([[3.0, 0.0], [4.0]], 5.0), ([[float("nan")]], None), ([None], None), ([[1.0], None], 1.0)],
)
def test_the_norm_is_over_all_gradients_that_are_there_and_read_with_the_loss(
    gradients: list[Any], norm: float | None, tmp_path: Path
) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1 if one is None else len(one))) for one in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else torch.tensor(gradient)
    reports = Reports(tmp_path, 0, 1.0)
    measure, trainer = Measuring(reports), SimpleNamespace(global_rank=0, accumulate_grad_batches=1, global_step=1)
    measure.on_before_optimizer_step(trainer, None, torch.optim.SGD(parameters, lr=1))  # type: ignore[arg-type]
    assert reports.measures.gradient_norm is None  # to read it would wait for the device
    measure.read(trainer)  # type: ignore[arg-type]
    assert reports.measures.gradient_norm == norm
