"""A classifier whose last layer is made in `setup`, once the classes are known."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self, width: int = 32):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(16, width), nn.ReLU())
        self.head = None

    def setup(self, stage):
        if self.head is None:
            self.head = nn.Linear(self.hparams.width, 3)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, label = batch
        loss = F.cross_entropy(self(x), label)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, label = batch
        self.log("accuracy", (self(x).argmax(1) == label).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
