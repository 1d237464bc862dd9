"""MoCo: keys of earlier batches wait in a queue, and the key encoder follows the query encoder."""

import copy

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self, dim: int = 8, length: int = 64, momentum: float = 0.9):
        super().__init__()
        self.save_hyperparameters()
        self.query = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, dim))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(length, dim), dim=1))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        return F.normalize(self.query(x), dim=1)

    @torch.no_grad()
    def encode_keys(self, x):
        for query, key in zip(self.query.parameters(), self.key.parameters(), strict=True):
            key.mul_(self.hparams.momentum).add_(query, alpha=1 - self.hparams.momentum)
        return F.normalize(self.key(x), dim=1)

    def training_step(self, batch, batch_idx):
        x = batch[0]
        queries = self(x + 0.1 * torch.randn_like(x))
        keys = self.encode_keys(x + 0.1 * torch.randn_like(x))
        logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ self.queue.T.clone()], 1) / 0.2
        at = int(self.place)
        self.queue[at : at + len(x)] = keys
        self.place[0] = (at + len(x)) % len(self.queue)
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=self.device))
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.query.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
