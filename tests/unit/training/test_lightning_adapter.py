"""What we rely on inside Lightning and torchmetrics still holds; a line that fails says what a version has changed.

With newer versions of both installed, it says before anything else does what has changed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from tests.support.lightning_internals import INTERNALS, Internal
from tests.support.lightning_training import Batches, Net, quiet_trainer


@pytest.mark.parametrize("line", INTERNALS, ids=str)
def test_what_we_rely_on_is_as_we_assume(line: Internal) -> None:
    fault = line.fault()
    assert not fault, fault


def test_the_table_has_every_internal_that_is_used(repository: Path) -> None:
    tree = ast.parse((repository / "training/lightning_adapter.py").read_text())
    listed = {part for line in INTERNALS for part in line.name.split(".")}
    own = {"_pass_over", "_read", "_no_advice", "_task_classes"}
    assert private_names(tree) - own - listed == set()


def private_names(tree: ast.AST) -> set[str]:
    """Names with an underscore in front that a module imports, reads, sets or overrides."""
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.alias)}
    return {name for name in found if name.startswith("_") and not name.endswith("__")}


class Events(Net):
    """A module that says what happens to it."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.order.append("step")

    def on_validation_epoch_end(self) -> None:
        self.order.append("validated")


def trained_by(loop: Any, order: list[str], *loaders: Any) -> L.Trainer:
    from training.lightning_adapter import install_epoch_loop

    trainer = quiet_trainer()
    install_epoch_loop(trainer, loop(trainer))
    trainer.fit(Events(order), *(loaders or (Batches(), Batches())))
    return trainer


def test_each_micro_batch_is_fetched_between_the_hooks_and_may_be_passed_over() -> None:
    from training.lightning_adapter import EpochLoop

    order: list[str] = []

    class Loop(EpochLoop):
        def before_batch(self, fetcher: Any) -> bool:
            order.append(f"before {self.batches_done}")
            return self.batches_done != 0

        def around_fetch(self, *, fetched: bool) -> None:
            order.append("fetched" if fetched else "fetching")

    trainer = trained_by(Loop, order, Batches())
    # The first is passed over, yet counted and fetched.
    before, fetch = [f"before {at}" for at in range(2)], ["fetching", "fetched"]
    assert [one for one in order if one.startswith("before")] == before
    assert (order.count("step"), order.index("step") > order.index(before[1])) == (1, True)
    assert [one for one in order if one in fetch] == fetch * 2
    assert (trainer.global_step, trainer.current_epoch) == (1, 1)


def test_values_are_shared_before_and_after_the_hooks_of_a_validation() -> None:
    from training.lightning_adapter import EpochLoop, ValidationLoop

    order: list[str] = []

    class Shared(ValidationLoop):
        def share(self) -> None:
            order.append("share")
            values = self.logged_values()
            logged = values["validation_step.val"]
            assert (logged.reduction, float(logged.value), float(logged.rows)) == ("mean", 6, 6)  # type: ignore[arg-type]
            self.fix_value("validation_step.val", torch.tensor(5.0))
            self.publish([(logged.names, torch.tensor(5.0))])

    trainer = trained_by(lambda trainer: EpochLoop(trainer, Shared(trainer)), order)
    assert [one for one in order if one != "step"][:3] == ["share", "validated", "share"]
    assert float(trainer.callback_metrics["val"]) == 5


class Numbers:
    """Eight batches with their numbers in an endless row, from a position on."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(len(self)):
            self.at += 1
            yield torch.full((1, 1), float(self.at))

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


# What sets up the loaders, wherever a module asks for it.
ASKS: dict[str, Callable[[L.Trainer], Any]] = {
    "estimated_stepping_batches": lambda trainer: trainer.estimated_stepping_batches,
    "setup_data": lambda trainer: (trainer.fit_loop.setup_data(), trainer.num_training_batches),
    "train_dataloader": lambda trainer: (trainer.fit_loop.setup_data(), iter(trainer.train_dataloader)),
}


# Each hook that may ask first, and in one of them each way to ask.
HOOKS = ["setup", "configure_model", "on_load_checkpoint", "on_fit_start", "on_train_start"]


@pytest.mark.parametrize(
    ("hook", "ask"),
    [*((hook, "setup_data") for hook in HOOKS), *(("configure_optimizers", ask) for ask in ASKS)],
)
def test_a_loader_resumes_at_its_position_whatever_sets_it_up_first(hook: str, ask: str, tmp_path: Path) -> None:
    from training.lightning_adapter import EpochLoop, install_epoch_loop

    class Asks(Net):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            seen.append(int(batch))
            return super().training_step(batch, batch_idx)

    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        ASKS[ask](self.trainer)
        return getattr(super(Asks, self), hook)(*args, **kwargs)

    setattr(Asks, hook, hooked)

    class Loop(EpochLoop):
        def before_batch(self, fetcher: Any) -> bool:
            if self.batches_done == 5 and not self.trainer.current_epoch:
                self.trainer.save_checkpoint(tmp_path / "saved.ckpt")
            return True

    ends = []
    for resumed in (None, tmp_path / "saved.ckpt"):
        seen: list[int] = []
        trainer = quiet_trainer(max_epochs=2, num_sanity_val_steps=0)
        install_epoch_loop(trainer, Loop(trainer))
        trainer.fit(Asks([]), Numbers(), ckpt_path=resumed)
        ends.append((seen, trainer.global_step))
    assert ends == [([*range(1, 17)], 16), ([*range(6, 17)], 16)]
