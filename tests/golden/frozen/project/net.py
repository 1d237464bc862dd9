"""The user's code of the frozen specs. Its bytes are part of their keys, so it stays as it is."""

import lightning as L
import torch
from torch import nn
from torchmetrics import MeanMetric


class Net(L.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.lr = lr
        self.net = nn.Linear(3, 2)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", nn.functional.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Rows(L.LightningDataModule):
    def __init__(self, count=8):
        super().__init__()
        self.count = count


class Score(MeanMetric):
    pass


def same(batch, **settings):
    return batch
