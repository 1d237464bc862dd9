"""A class and a number from one body, weighed by uncertainties that are learned."""

import torch
from base import Classifier
from torch import nn
from torch.nn import functional as F


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"label": nn.Linear(32, 3), "y": nn.Linear(32, 1)})
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        hidden = self.net(x)
        return {name: head(hidden) for name, head in self.heads.items()}

    def losses(self, batch):
        given = self(batch["x"])
        return torch.stack(
            [F.cross_entropy(given["label"], batch["label"]), F.mse_loss(given["y"].squeeze(1), batch["y"])]
        )

    def training_step(self, batch, batch_idx):
        losses = self.losses(batch)
        loss = (losses * torch.exp(-self.log_vars) + self.log_vars).sum()
        self.log_dict({"loss": loss, "label": losses[0], "y": losses[1]}, on_epoch=True, on_step=True)
        return loss

    def validation_step(self, batch, batch_idx):
        losses = self.losses(batch)
        self.log_dict({"val_label": losses[0], "val_y": losses[1]})

    def predict_step(self, batch, batch_idx):
        return self(batch["x"])["label"]

    def configure_optimizers(self):
        groups = [
            {"params": self.net.parameters(), "lr": 0.01},
            {"params": self.heads.parameters(), "lr": 0.02},
            {"params": [self.log_vars], "lr": 0.1, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups)
