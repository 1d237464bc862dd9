"""BYOL: two views of a row, a predictor, and a target network that follows."""

import copy

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self, momentum: float = 0.95):
        super().__init__()
        self.save_hyperparameters()
        self.online = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
        self.predictor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        return self.online(x)

    def view(self, x):
        return x * (torch.rand_like(x) > 0.2) + 0.1 * torch.randn_like(x)

    def training_step(self, batch, batch_idx):
        one, two = self.view(batch[0]), self.view(batch[0])
        loss = 0.0
        for a, b in ((one, two), (two, one)):
            with torch.no_grad():
                wanted = self.target(b)
            loss = loss + 2 - 2 * F.cosine_similarity(self.predictor(self.online(a)), wanted).mean()
        self.log("loss", loss)
        return loss

    def on_before_zero_grad(self, optimizer):
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.data = self.hparams.momentum * slow.data + (1 - self.hparams.momentum) * fast.data

    def configure_optimizers(self):
        return torch.optim.Adam([*self.online.parameters(), *self.predictor.parameters()], lr=0.005)
