"""A graph network; batches are graphs of different sizes, as objects with a `to` of their own."""

from dataclasses import dataclass

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


@dataclass
class Graphs:
    x: torch.Tensor
    edges: torch.Tensor
    graph: torch.Tensor
    y: torch.Tensor

    def to(self, device, non_blocking=False):
        return Graphs(*(value.to(device) for value in vars(self).values()))


def make(seed):
    draw = torch.Generator().manual_seed(seed)
    nodes = 3 + seed % 4
    x = torch.randn(nodes, 4, generator=draw)
    return x, torch.randint(nodes, (2, 2 * nodes), generator=draw), x.sum().reshape(1)


def collate(graphs):
    sizes = torch.tensor([len(x) for x, _, _ in graphs])
    starts = sizes.cumsum(0) - sizes
    edges = torch.cat([each + start for (_, each, _), start in zip(graphs, starts, strict=True)], 1)
    which = torch.repeat_interleave(torch.arange(len(graphs)), sizes)
    return Graphs(torch.cat([x for x, _, _ in graphs]), edges, which, torch.cat([y for _, _, y in graphs]))


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader([make(seed) for seed in range(80)], batch_size=8, shuffle=True, collate_fn=collate)

    def val_dataloader(self):
        return DataLoader([make(seed) for seed in range(80, 96)], batch_size=8, collate_fn=collate)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.message, self.update, self.out = nn.Linear(4, 8), nn.Linear(12, 8), nn.Linear(8, 1)

    def forward(self, batch):
        source, target = batch.edges
        received = batch.x.new_zeros(len(batch.x), 8).index_add(0, target, self.message(batch.x).relu()[source])
        hidden = self.update(torch.cat([batch.x, received], 1)).relu()
        pooled = hidden.new_zeros(len(batch.y), 8).index_add(0, batch.graph, hidden)
        return self.out(pooled).squeeze(1)

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self(batch), batch.y)
        self.log("loss", loss, batch_size=len(batch.y))
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.mse_loss(self(batch), batch.y), batch_size=len(batch.y))

    def configure_optimizers(self):
        return torch.optim.ASGD(self.parameters(), lr=0.01)
