"""Low-rank adapters beside the frozen layers of a backbone."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Adapted(nn.Module):
    def __init__(self, frozen: nn.Linear, rank: int = 2, scale: float = 2.0):
        super().__init__()
        self.frozen, self.scale = frozen.requires_grad_(False), scale
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x):
        return self.frozen(x) + self.scale * F.linear(F.linear(x, self.down), self.up)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(16, 32), nn.Linear(32, 32)]
        self.body = nn.Sequential(Adapted(layers[0]), nn.Tanh(), Adapted(layers[1]), nn.Tanh())
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, label = batch
        loss = F.cross_entropy(self(x), label)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW([one for one in self.parameters() if one.requires_grad], lr=0.01)
