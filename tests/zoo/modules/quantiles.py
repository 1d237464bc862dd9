"""Three quantiles of a number, by the pinball loss."""

import torch
from base import Classifier
from torch import nn


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 3))
        self.register_buffer("quantiles", torch.tensor([0.1, 0.5, 0.9]), persistent=False)

    def pinball(self, batch):
        off = batch[1].unsqueeze(1) - self(batch[0])
        return torch.maximum(self.quantiles * off, (self.quantiles - 1) * off).mean()

    def training_step(self, batch, batch_idx):
        loss = self.pinball(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.pinball(batch))

    def configure_optimizers(self):
        return torch.optim.NAdam(self.parameters(), lr=0.01)
