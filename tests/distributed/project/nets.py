"""Modules as people write them, without a thought of Trainwright."""

import json
import os
import signal
import time

import lightning as L
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(torch.relu(self.linear(x)))


class Center(nn.Module):
    """Subtracts a running mean: a buffer that training depends on, and that each rank's rows would pull elsewhere."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


class Classifier(L.LightningModule):
    """Calls itself in its step; dropout, a schedule, a metric over validation."""

    def __init__(self, width: int = 8, dropout: float = 0.2, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        self.inlet = nn.Sequential(Center(4), nn.Linear(4, width))
        self.blocks = nn.Sequential(Block(width, dropout), Block(width, dropout))
        self.norm = nn.BatchNorm1d(width)
        self.outlet = nn.Linear(width, 2)

    def forward(self, x):
        return self.outlet(self.norm(self.blocks(self.inlet(x))))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=10.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Direct(Classifier):
    """Never calls itself: its steps go to the submodules."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = self.norm(self.blocks(self.inlet(x)))
        loss = F.cross_entropy(self.outlet(hidden), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.outlet(self.norm(self.blocks(self.inlet(x)))), y))


class Plain(L.LightningModule):
    """Nothing in it depends on the other rows of a batch or on chance."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.layers(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.layers(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)]


class Numbers(L.LightningModule):
    """Logs the loss of each whole step, over all its micro-batches and ranks; nothing in it is drawn."""

    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(4, 16)
        self.blocks = nn.Sequential(Block(16, 0.0), Block(16, 0.0))
        self.outlet = nn.Linear(16, 2)
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.outlet(self.blocks(self.inlet(x))), y)
        self.losses.append(loss.detach().float())
        self.log("loss", torch.stack(self.losses).mean(), sync_dist=True)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.losses.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class TwoSteps(Classifier):
    """Draws in its step from all generators, so that a resumed run is equal only if they are restored."""

    def training_step(self, batch, batch_idx):
        import random

        import numpy as np

        x, y = batch
        noise = random.random() + float(np.random.rand()) + torch.rand(())
        loss = F.cross_entropy(self(x) * (1 + 0.01 * noise), y)
        self.log("loss", loss)
        return loss


class Killed(TwoSteps):
    """Dies with the rank and at the step that the environment names.

    Asks for the length of its training and, if the environment has LOOKS, looks at its loader in its hooks.
    """

    def look(self):
        if os.environ.get("LOOKS"):
            assert len(list(self.trainer.train_dataloader)) == len(self.trainer.train_dataloader)
            next(iter(self.trainer.train_dataloader))

    on_train_start = on_train_epoch_start = on_train_epoch_end = look

    def on_train_batch_start(self, batch, batch_idx):
        self.look()
        if os.environ.get("KILL") == f"{self.global_step} {self.global_rank}":
            os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Doubtful(Classifier):
    """Nothing says which of its inputs the only entry of a batch is."""

    def forward(self, first, second):
        raise AssertionError("no step is taken")


class Raises(Classifier):
    def training_step(self, batch, batch_idx):
        if self.global_step == 2:
            self.helper()
        return super().training_step(batch, batch_idx)

    def helper(self):
        raise RuntimeError("the third step is too much")


class RaisesOnOneRank(Raises):
    def helper(self):
        if self.global_rank == 1:
            raise RuntimeError("rank one alone")


class TurnsNan(Classifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * float("nan") if self.global_step == 4 and self.global_rank == 1 else loss


class NanGradient(Classifier):
    """The loss of this step is fine, its weights are not."""

    def on_before_optimizer_step(self, optimizer):
        if self.global_step == 4:
            self.outlet.bias.grad.fill_(float("nan"))


class Pinned(Classifier):
    """Sees to it that batches come in memory from which a device copies without being waited for."""

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        if device.type == "cuda" and self.trainer.training:
            assert all(column.is_pinned() for column in batch)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)


class Ledger(L.LightningModule):
    """Writes which rows each rank trains on, one line per micro-batch: generation, rank, step, rows.

    As the environment says: POISON, a row with which the loss is no number; MOST, the most rows that fit in memory;
    PACE, seconds that a step takes at least.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(4, 2)
        with open(os.environ["TRAINWRIGHT_LAUNCH"]) as launch:
            self.generation = json.load(launch)["generation"]

    def training_step(self, batch, batch_idx):
        x, y, row = batch
        if not self.training:  # the loss on a held batch
            return F.cross_entropy(self.layers(x), y)
        if len(row) > int(os.environ.get("MOST", 1000)):
            raise torch.OutOfMemoryError("no more")
        time.sleep(float(os.environ.get("PACE", 0)))
        with open(os.environ["LEDGER"], "a") as ledger:
            line = {"g": self.generation, "rank": self.global_rank, "step": self.global_step, "rows": row.tolist()}
            ledger.write(json.dumps(line) + "\n")
        loss = F.cross_entropy(self.layers(x), y)
        return loss * float("nan") if int(os.environ.get("POISON", -1)) in row.tolist() else loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Drifts(Plain):
    """One replica's weight changes by itself, as by a bit that flips in its memory."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step == 5 and self.global_rank == 1:
            weight = self.layers[0].weight.detach()
            weight = weight.to_local() if hasattr(weight, "to_local") else weight
            weight[0, 0] += 1e-6


class Uneven(Plain):
    """The environment says RANK_THAT=rank, and STANDS=the step from which it stands still or SLOW=seconds per step."""

    def training_step(self, batch, batch_idx):
        if self.training and self.global_rank == int(os.environ["RANK_THAT"]):
            stands = self.global_step >= int(os.environ.get("STANDS", 10**9))
            time.sleep(1000 if stands else float(os.environ.get("SLOW", 0)))
        return super().training_step(batch, batch_idx)


class LogsOnRankOne(Plain):
    """Logs on one rank what the other never does, in training, in validation and at its end."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.global_rank == 1:
            self.log("hard", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log("rows", float(len(batch[1])), reduce_fx="sum")
        if self.global_rank == 1:
            self.log("rare", float(batch_idx))

    def on_validation_epoch_end(self):
        if self.global_rank == 1:
            self.log("late", 2.0)


class Unsavable(Classifier):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["handle"] = {"of": [1, object()]}


class UnsavableLate(Classifier):
    """Has such state only from its first hook within the training on."""

    def on_train_start(self):
        self.handle = object()

    def on_save_checkpoint(self, checkpoint):
        checkpoint["handle"] = getattr(self, "handle", None)


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        draw = torch.Generator().manual_seed(7)
        self.x = torch.randn(rows, 4, generator=draw)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return self.x[at], self.y[at]


class RowsModule(L.LightningDataModule):
    def __init__(self, path: str = "", batch_size: int = 8):
        super().__init__()
        self.path = path
        self.batch_size = batch_size

    def setup(self, stage):
        self.rows = Rows(96)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.rows, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(Rows(20), self.batch_size)


class Drawing:
    """Batches without end, each drawn from where it stands; it stands elsewhere on each rank."""

    def __init__(self, rank):
        self.at = 1000 * rank

    def __len__(self):
        return 6

    def __iter__(self):
        for _ in range(len(self)):
            self.at += 1
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(self.at))
            yield x, (x.sum(1) > 0).long()

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class DrawingModule(L.LightningDataModule):
    def train_dataloader(self):
        return Drawing(self.trainer.global_rank)


def hang(where):
    """Stand still on rank 1, if the test asks for it."""
    if os.environ.get("HANGS") == where and os.environ["RANK"] == "1":
        time.sleep(1000)


class Scored(Classifier):
    """Predicts, and logs of each test batch a mean, a sum and, if asked, a metric object."""

    def __init__(self, width: int = 8, metric: bool = False, first_raises: bool = False):
        super().__init__(width=width)
        self.metric = torchmetrics.MeanMetric() if metric else None
        self.first_raises = first_raises

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * 2, batch[1]]

    def training_step(self, batch, batch_idx):
        hang("training_step")
        if self.first_raises and self.trainer.world_size > 1 and self.trainer.is_global_zero:
            raise KeyError("only here")
        return super().training_step(batch, batch_idx)

    def predict_step(self, batch, batch_idx):
        if batch_idx > 1:
            hang("predict_step")
        return self(batch[0]).softmax(1)

    def test_step(self, batch, batch_idx):
        if batch_idx > 1:
            hang("test_step")
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("test_loss", loss, sync_dist=True)
        self.log("place", float(batch_idx), reduce_fx="sum")
        if self.metric is not None:
            self.metric(loss)
            self.log("object", self.metric)


class Adversaries(L.LightningModule):
    """Two optimizers, which step one after the other on each batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = nn.Linear(4, 4), nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        for optimizer in self.optimizers():
            loss = F.cross_entropy(self.judge(self.maker(x)), y)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("loss", loss)

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.maker, self.judge)]


class WritesMore(Plain):
    """Writes through its logger's experiment, and into its logger's folder."""

    def on_train_epoch_end(self):
        self.logger.experiment.log_metrics({"norm": 1.0}, step=self.global_step)
        if self.trainer.is_global_zero:
            with open(f"{self.logger.log_dir}/epoch-{self.current_epoch}.txt", "w") as file:
                file.write("seen")


class Backboned(Plain):
    """Has a backbone, as callbacks that train it later ask for."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.layers = nn.Sequential(self.backbone, self.layers)

    def configure_optimizers(self):
        return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], lr=0.1)


def rows_of(batch):
    return len(batch[0])
