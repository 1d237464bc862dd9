"""A student learns from a frozen teacher that is no part of its weights."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self, temperature: float = 2.0):
        super().__init__()
        self.save_hyperparameters()
        self.student = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
        teacher = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3)).eval().requires_grad_(False)
        self.teacher = [teacher]  # in a list: its weights stay out of checkpoints

    def forward(self, x):
        return self.student(x)

    def training_step(self, batch, batch_idx):
        x, label = batch
        t = self.hparams.temperature
        logits = self(x)
        soft = F.kl_div(F.log_softmax(logits / t, -1), F.softmax(self.teacher[0](x) / t, -1), reduction="batchmean")
        loss = F.cross_entropy(logits, label) + t * t * soft
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)]
