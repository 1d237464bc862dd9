"""The loss on a held batch: the same from the same weights, and training is not disturbed by it."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.aggregation import MeanMetric

from training.checkpoint.saver import capture_rng
from training.fit.reference_loss import circumstances, held_loss, misfit, record
from training.lightning_adapter import place_in_training
from training.user.ready import plain_trainer

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


def with_trainer(module: Net) -> Net:
    """A module outside of a training's loops, as verify has it."""
    module.trainer = plain_trainer({"lightning": {"model": {}}}, [])
    return module


def test_it_depends_on_the_weights_alone_and_changes_nothing() -> None:
    torch.manual_seed(1)
    module = with_trainer(Net().train())
    trainer = module.trainer
    module.frozen.eval()
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


class Scheduling(Net):
    """Changes a batch, and its loss, by where the training stands."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if not self.trainer.training:
            return batch
        return batch[0] * (3 + self.current_epoch), batch[1] + self.trainer.global_step


def test_verify_stands_where_the_training_stood_and_calls_the_hooks_of_a_batch() -> None:
    """A training records the loss within its loops, and verify computes it outside."""

    class Records(L.Callback):
        def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            found.append(held_loss(module, lambda: BATCH, trainer))
            kept.update({name: value.clone() for name, value in module.state_dict().items()})

    found: list[float | None] = []
    kept: dict[str, torch.Tensor] = {}
    module = Scheduling()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters())  # type: ignore[method-assign]
    settings = {"accelerator": "cpu", "max_epochs": 2, "logger": False, "enable_checkpointing": False}
    trainer = L.Trainer(**settings, enable_progress_bar=False, callbacks=[Records()])
    trainer.fit(module, DataLoader(TensorDataset(*BATCH), batch_size=2))
    outside = {other: with_trainer(other()) for other in (Scheduling, Net)}
    for other in outside.values():
        other.load_state_dict(kept)
        place_in_training(other.trainer, step=4, epochs=2)
        stands = (other.trainer.global_step, other.current_epoch)
        assert stands == (trainer.global_step, trainer.current_epoch) == (4, 2)
    assert found == [held_loss(outside[Scheduling], lambda: BATCH, outside[Scheduling].trainer)]
    assert found != [held_loss(outside[Net], lambda: BATCH, outside[Net].trainer)], "without the hooks"


class Gathering(Net):
    """A step over the values of all ranks, as contrastive losses have."""

    def training_step(self, batch: Any) -> Any:
        return self.all_gather(self.net(batch[0])).square().mean()


def test_a_step_that_gathers_is_not_compared_with_another_number_of_ranks() -> None:
    module = with_trainer(Gathering())
    trainer = module.trainer
    assert held_loss(module, lambda: BATCH, trainer, ranks=1) == held_loss(module, lambda: BATCH, trainer)
    with pytest.raises(RuntimeError, match="another number of ranks recorded the loss"):
        held_loss(module, lambda: BATCH, trainer, ranks=2)
    assert "all_gather" not in module.__dict__


def test_a_module_may_log_by_its_logger() -> None:
    """On the first rank alone, as modules do: an error there would leave the other ranks waiting."""

    class Logging(Net):
        def training_step(self, batch: Any) -> Any:
            if self.trainer.is_global_zero:
                self.logger.log_metrics({"seen": 1.0}, step=0)
                self.logger.experiment.add_scalar("seen", 1.0)
            return super().training_step(batch)

    module = with_trainer(Logging())
    assert held_loss(module, lambda: BATCH, module.trainer) is not None


@pytest.mark.parametrize("given", [None, torch.ones(2), "text"])
def test_a_step_without_a_loss_has_none(given: Any) -> None:
    module = with_trainer(type("Without", (Net,), {"training_step": lambda self, batch, batch_idx: given})())
    assert held_loss(module, lambda: BATCH, module.trainer) is None
    assert record(module, lambda: BATCH, module.trainer, sharded=False, rows=4) is None


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
