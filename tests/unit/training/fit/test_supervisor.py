"""The supervisor's look at the loss: what it says of a training that diverged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data_contracts.errors import Diverged
from training.fit.guards import LOOK_EVERY
from training.fit.measuring import History
from training.fit.reports import RankActivity
from training.fit.supervisor import Supervisor


def supervisor(every_s: float | None = None) -> Supervisor:
    train = SimpleNamespace(
        global_batch_size=10,
        spike_factor=None,
        select=None,
        collective_timeout_s=60,
        checkpoint=SimpleNamespace(every_steps=None, every_s=every_s),
    )
    context: Any = SimpleNamespace(resume=None, train=train, stop=None, scratch=Path("/nowhere"))
    reports: Any = SimpleNamespace(stop_asked=False, activity=RankActivity(), stalled=lambda seconds: None)
    store: Any = None
    return Supervisor(context, store, reports, History(), None, None)


class OneStepABatch(SimpleNamespace):
    """A Trainer that iterates the user's own loader."""

    @property
    def fit_loop(self) -> Any:
        return SimpleNamespace(total_batch_idx=self.global_step - 1)


def trainer_on(device: str) -> Any:
    return OneStepABatch(
        strategy=SimpleNamespace(root_device=torch.device(device)),
        lightning_module=torch.nn.Linear(1, 1),
        train_dataloader=None,
        world_size=1,
        current_epoch=0,
        global_step=0,
    )


@pytest.mark.parametrize(("device", "since"), [("cpu", LOOK_EVERY + 1), ("meta", LOOK_EVERY - 1)])
def test_the_samples_since_the_last_look_are_named_and_those_before_it(device: str, since: int) -> None:
    """The step before may have left weights behind with which any loss is no number."""
    kept, trainer = supervisor(), trainer_on(device)
    bad = LOOK_EVERY + 3

    def run() -> None:
        for trainer.global_step in range(1, 3 * LOOK_EVERY):
            loss = torch.tensor(float("nan") if trainer.global_step == bad else 1.0)
            kept.on_train_batch_end(trainer, trainer.lightning_module, loss, None, 0)
            kept._agree(trainer, saving=False)

    with pytest.raises(Diverged) as caught:
        run()
    found = bad if device == "cpu" else 2 * LOOK_EVERY
    assert caught.value.details == {"step": found, "samples": [10 * since, 10 * found]}


def test_a_bad_weight_may_have_come_with_any_sample_since_the_last_checkpoint() -> None:
    kept, trainer = supervisor(), trainer_on("cpu")  # whose losses were not seen
    for trainer.global_step, saving in ((1, True), (2, False), (3, False)):
        kept._agree(trainer, saving=saving)
    trainer.lightning_module.weight.data.fill_(torch.inf)
    trainer.global_step = 4
    with pytest.raises(Diverged) as caught:
        kept._agree(trainer, saving=True)
    assert caught.value.details["samples"] == [10, 40]


def test_a_checkpoint_by_the_clock_needs_finite_weights() -> None:
    kept, trainer = supervisor(every_s=1e-9), trainer_on("cpu")
    trainer.lightning_module.weight.data.fill_(torch.nan)
    trainer.global_step = 1
    with pytest.raises(Diverged):
        kept._agree(trainer, saving=False)
