"""A module, a data module and a callback that write down each call of each of their hooks."""

import inspect
import json
import os

import lightning as L
import torch
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from torch import nn
from torch.nn import functional as F

OPTIMIZING = (
    "configure_callbacks",
    "configure_optimizers",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
    "backward",
    "training_step",
    "validation_step",
    "test_step",
    "predict_step",
)


def hooks_of(*bases):
    """The names of the public methods that a class is asked to override."""
    names = [name for base in bases for name, one in vars(base).items() if inspect.isfunction(one)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


LOADERS = [name for name in hooks_of(DataHooks) if name.endswith("_dataloader")]
DEPRECATED = ("configure_sharded_model",)
MODULE = [
    name
    for name in (*hooks_of(ModelHooks, DataHooks, CheckpointHooks), *OPTIMIZING)
    if name not in LOADERS and name not in DEPRECATED
]
DATA = [*hooks_of(DataHooks), "state_dict", "load_state_dict"]
CALLBACK = [name for name in hooks_of(L.Callback) if name != "state_key"]


def write_down(owner, hook, arguments, trainer):
    path = os.environ.get("RECORD")
    if not path:
        return
    numbers = [one for one in arguments if isinstance(one, int | str) and not isinstance(one, bool)]
    line = [owner, hook, numbers, None if trainer is None else answers(trainer)]
    with open(f"{path}-{os.environ.get('RANK', '0')}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def answers(trainer):
    loop = trainer.fit_loop
    return {
        "fn": trainer.state.fn,
        "stage": trainer.state.stage,
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "batch": loop.batch_idx,
        "total": loop.total_batch_idx,
        "last": trainer.is_last_batch,
        "accumulate": trainer.accumulate_grad_batches,
        "sanity": trainer.sanity_checking,
        "ranks": trainer.world_size,
        "batches": trainer.num_training_batches,
        "val_batches": [str(one) for one in trainer.num_val_batches],
        "epochs": trainer.max_epochs,
        "optimizers": len(trainer.optimizers),
        "grad": torch.is_grad_enabled(),
        "mode": trainer.lightning_module is not None and trainer.lightning_module.training,
        "stop": trainer.should_stop,
    }


def recording(names):
    """A decorator that makes a class write down the calls of these methods, and then do what they do."""

    def of(kind):
        for name in names:
            setattr(kind, name, _written_down(kind.label, name, getattr(kind, name)))
        return kind

    return of


def _written_down(label, name, method):
    def call(self, *args, **kwargs):
        trainer = next((one for one in args if isinstance(one, L.Trainer)), None)
        if trainer is None and not isinstance(self, L.Callback):
            trainer = self._trainer if isinstance(self, L.LightningModule) else self.trainer
        write_down(label, name, [*args, *kwargs.values()], trainer)
        return method(self, *args, **kwargs)

    # Lightning takes a method with `__wrapped__` for one that is not overridden.
    call.__name__, call.__signature__ = name, inspect.signature(method)
    return call


@recording(MODULE)
class Net(L.LightningModule):
    label = "module"

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def configure_callbacks(self):
        return [OfModule()]

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.layer(batch[0]), batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", F.cross_entropy(self.layer(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self.layer(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


@recording(CALLBACK)
class OfModule(L.Callback):
    label = "callback of the module"


@recording(CALLBACK)
class OfConfig(L.Callback):
    label = "callback"


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, at):
        x = torch.randn(4, generator=torch.Generator().manual_seed(at))
        return x, (x.sum() > 0).long()


@recording(DATA)
class Data(L.LightningDataModule):
    label = "data"

    def _loader(self):
        return torch.utils.data.DataLoader(Rows(), 8)

    def train_dataloader(self):
        return self._loader()

    def val_dataloader(self):
        return self._loader()

    def test_dataloader(self):
        return self._loader()

    def predict_dataloader(self):
        return self._loader()
