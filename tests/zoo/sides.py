"""The two sides of a comparison, each in a process of its own: plain Lightning, and one rank of ours.

`python -m tests.zoo.sides SIDE FILE` trains the modules that a file lists, one after another: a process costs more than
a training. `python -m tests.zoo.sides killed MOMENT` trains one, up to a moment.

Both sides leave what they ended with: the checkpoint, what the logger got, and what callbacks saw after each batch.
Plain Lightning gets copies of the batches that our loader gives.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import Logger

from infra.gang.rank_files import RankFiles
from training.checkpoint.files import TensorReader, read_state
from training.checkpoint.saver import read_history
from training.fit import assembly, rank
from training.fit.launch_context import read_context
from training.loader import TrainLoader
from training.user.imports import add_project
from training.user.ready import silence

# In a config of a user's, these are what the spec decides.
OWNED = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Seen(L.Callback):
    """What a callback sees after each batch of training and after each validation."""

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._look(trainer)

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._look(trainer)

    def on_train_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._look(trainer)

    def _look(self, trainer: L.Trainer) -> None:
        place = {"epoch": float(trainer.current_epoch), "step": float(trainer.global_step)}
        both = {**trainer.callback_metrics, **trainer.progress_bar_metrics}
        self.values.append({**place, **{name: float(value) for name, value in both.items()}})


class Killed(L.Callback):
    """Kills its process when so many of the Trainer's hooks have been called."""

    HOOKS = ("on_train_batch_start", "on_before_backward", "on_before_optimizer_step", "on_train_batch_end")

    def __init__(self, moment: int) -> None:
        self.left = moment
        for hook in (*self.HOOKS, "on_validation_batch_end", "on_train_epoch_end"):
            setattr(self, hook, self._count)

    def _count(self, *_: Any) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def train_each(side: Callable[[str], None], path: str) -> None:
    """Train the modules that a file lists, each in its folder; one that fails leaves no result."""
    for training in json.loads(Path(path).read_text()):
        os.environ.update(training["environment"])
        os.chdir(training["folder"])
        print(f"== {training['folder']}", flush=True)
        try:
            side("result.pt")
        except BaseException:
            traceback.print_exc()


def killed(moment: str) -> None:
    """Train as a rank does, up to a moment; 0: to the end."""
    sys.exit(rank.main(lambda _, __: [Killed(int(moment))]))


def ours(result: str) -> None:
    """Train as a rank does, and read the checkpoint that it sealed."""
    seen = Seen()
    if code := rank.main(lambda _, __: [seen]):
        sys.exit(code)
    context = read_context()
    answer = RankFiles(context.scratch, 0).answer()
    assert answer.checkpoint is not None
    store = context.open_store()
    with TensorReader(store.local(store.verify(answer.checkpoint.ref.uri).ref)) as reader:
        state = read_state(reader.folder, reader.read)
        history = read_history(reader.folder)
    torch.save({"checkpoint": state, "logged": history, "seen": seen.values}, result)


def plain(result: str) -> None:
    """Train as `LightningCLI` does with the same config, seed and batches."""
    context = read_context()
    silence()
    plan, loaders = assembly.our_loaders(context)
    add_project(context.project)
    seen, logged = Seen(), Logged()
    config = context.lightning
    theirs = config.get("trainer") or {}
    batches = {name: Batches(loader) for name, loader in loaders.items()}
    cli = LightningCLI(
        args={**config, "trainer": {**theirs, **OWNED}, "seed_everything": context.train.seed},
        run=False,
        save_config_callback=None,
        trainer_defaults={"num_sanity_val_steps": 0, "default_root_dir": os.getcwd()},
        parser_kwargs={"exit_on_error": False},
    )
    trainer = cli.trainer
    trainer.loggers = [*(trainer.loggers if theirs.get("logger") else []), logged]
    trainer.callbacks.append(seen)
    trainer.accumulate_grad_batches = plan.accumulate if plan else trainer.accumulate_grad_batches
    for loader in batches.values():
        loader.trainer = trainer
    trainer.fit(cli.model, datamodule=cli.datamodule, **batches)
    trainer.save_checkpoint("plain.ckpt")
    state = torch.load("plain.ckpt", weights_only=False)
    torch.save({"checkpoint": state, "logged": logged.records, "seen": seen.values}, result)


class Batches:
    """Copies of a loader's batches; the memory of the loader's own may be used again.

    An epoch of training begins where the one before ended, also one that was cut short, as it does with our loader.
    """

    EPOCHS = 4

    def __init__(self, loader: Any) -> None:
        self.trainer: L.Trainer | None = None
        trains = isinstance(loader, TrainLoader)
        self._length = len(loader)
        self._batches = [copy.deepcopy(batch) for _ in range(self.EPOCHS if trains else 1) for batch in loader]
        self._trains = trains

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        first = self.trainer.fit_loop.total_batch_idx + 1 if self._trains else 0
        # Copies again: a step may change its batch.
        yield from copy.deepcopy(self._batches[first : first + self._length])


class Logged(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, float]] = []

    @property
    def name(self) -> str:
        return "logged"

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.records.append({"step": step or 0, **metrics})

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...


if __name__ == "__main__":
    if sys.argv[1] == "killed":
        killed(sys.argv[2])
    else:
        train_each({"ours": ours, "plain": plain}[sys.argv[1]], sys.argv[2])
