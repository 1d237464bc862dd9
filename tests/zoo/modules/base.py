"""What many of these modules share: a small classifier that logs its loss."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Classifier(L.LightningModule):
    def __init__(self, width: int = 32, dropout: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, label = batch
        loss = F.cross_entropy(self(x), label)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, label = batch
        self.log("val_loss", F.cross_entropy(self(x), label))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
