"""The loss on a held batch: the same from the same weights, and training is not disturbed by it."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.aggregation import MeanMetric

from training.checkpoint.rng import capture_rng
from training.fit.reference_loss import circumstances, held_loss, misfit, record
from training.user.assemble import plain_trainer

BATCH = (torch.arange(12.0).reshape(4, 3), torch.ones(4, 1))


class Net(L.LightningModule):
    """Everything that one step could change: dropout, running means, a metric, a logged value, the module's mode."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.frozen = nn.Dropout(0.5).eval()
        self.mean = MeanMetric()
        self.register_buffer("steps", torch.zeros(()))

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        self.steps += 1
        loss = nn.functional.mse_loss(self.frozen(self.net(x)) + torch.rand(()), y)
        self.mean.update(loss)
        self.log("loss", loss)
        return {"loss": loss}


def test_it_depends_on_the_weights_alone_and_changes_nothing() -> None:
    torch.manual_seed(1)
    module, trainer = Net().train(), plain_trainer({"lightning": {"model": {}}}, [])
    module.frozen.eval()
    module.trainer = trainer
    module.mean.update(torch.tensor(3.0))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = capture_rng()
    loss = held_loss(module, lambda: BATCH, trainer)
    assert (capture_rng(), module.training, module.frozen.training) == (state, True, False)
    assert (float(module.mean.compute()), module.mean._update_count) == (3.0, 1)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    torch.manual_seed(2)
    assert held_loss(module, lambda: BATCH, trainer) == loss
    other = Net()
    other.load_state_dict(module.state_dict())
    other.trainer = trainer
    assert held_loss(other, lambda: BATCH, trainer) == loss
    with torch.no_grad():
        other.net[0].weight[0, 0] += 1e-3
    assert held_loss(other, lambda: BATCH, trainer) != loss


class Doubling(Net):
    """Changes each batch on its way to the device."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return 2 * batch[0], batch[1]


def test_the_hooks_of_a_batch_are_called_inside_and_outside_of_a_trainers_loops() -> None:
    """A training records the loss within them, and verify computes it outside."""

    class Records(L.Callback):
        def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            found.append(held_loss(module, lambda: BATCH, trainer))

    found: list[float | None] = []
    torch.manual_seed(1)
    module, outside, without = Doubling(), Doubling(), Net()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters())  # type: ignore[method-assign]
    for other in (outside, without):
        other.load_state_dict(module.state_dict())
        other.trainer = plain_trainer({"lightning": {"model": {}}}, [])
    settings = {"accelerator": "cpu", "max_steps": 1, "logger": False, "enable_checkpointing": False}
    L.Trainer(**settings, enable_progress_bar=False, callbacks=[Records()]).fit(
        module, DataLoader(TensorDataset(*BATCH), batch_size=4)
    )
    assert found == [held_loss(outside, lambda: BATCH, outside.trainer)]
    assert found != [held_loss(without, lambda: BATCH, without.trainer)]


@pytest.mark.parametrize("given", [None, torch.ones(2), "text"])
def test_a_step_without_a_loss_has_none(given: Any) -> None:
    module, trainer = Net(), plain_trainer({"lightning": {"model": {}}}, [])
    type(module).training_step, kept = (lambda self, batch, batch_idx: given), Net.training_step
    try:
        assert held_loss(module, lambda: BATCH, trainer) is None
        assert record(module, lambda: BATCH, trainer, sharded=False, rows=4) is None
    finally:
        Net.training_step = kept  # type: ignore[method-assign]


def test_a_step_that_raises_and_one_that_steps_itself_are_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    module, trainer = Net(), plain_trainer({"lightning": {"model": {}}}, [])
    assert record(module, lambda: "no batch", trainer, sharded=False, rows=4) is None
    assert "the loss on the held batch is not recorded, because the module's step raised" in caplog.text
    module.automatic_optimization = False
    assert held_loss(module, lambda: BATCH, trainer) is None


NOW = circumstances(plain_trainer({"lightning": {"model": {}}}, []))


@pytest.mark.parametrize(
    ("change", "loss", "fits"),
    [
        ({}, 1.0, True),
        ({}, 1.0 + 2**-52, False),
        ({"sharded": True}, 1.0005, True),
        ({"sharded": True}, 1.002, False),
        ({"device": "another"}, 1.0005, True),
        ({"precision": "bf16-mixed"}, 1.04, True),
        ({"precision": "bf16-mixed"}, 1.06, False),
    ],
)
def test_equal_to_the_bit_where_all_else_is(change: dict[str, Any], loss: float, fits: bool) -> None:
    recorded = {"loss": 1.0, "sharded": False, **NOW, **change}
    assert (misfit(recorded, loss, NOW) == "") is fits
