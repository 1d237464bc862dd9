"""A normalizing flow of coupling layers, in double precision."""

import math

import lightning as L
import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip, self.net = flip, nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16))

    def forward(self, x):
        a, b = x.flip(1).chunk(2, 1) if self.flip else x.chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        return torch.cat([a, b * scale.tanh().exp() + shift], 1), scale.tanh().sum(1)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(number % 2)) for number in range(4))

    def forward(self, x):
        total = 0.0
        for layer in self.layers:
            x, part = layer(x)
            total = total + part
        return total - (x**2).sum(1) / 2 - 8 * math.log(2 * math.pi)

    def training_step(self, batch, batch_idx):
        loss = -self(batch[0]).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("likelihood", self(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.Rprop(self.parameters(), lr=0.001)
