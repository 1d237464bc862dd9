"""Small modules of several kinds, as a user would write them: copied into a project, they classify rows of numbers."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Kind(L.LightningModule):
    net: Any

    def __init__(self, optimizer: str = "Adam"):
        super().__init__()
        self.optimizer = optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        more = {"momentum": 0.9} if self.optimizer == "SGD" else {}
        return getattr(torch.optim, self.optimizer)(self.parameters(), lr=0.001, **more)


class Linear(Kind):
    def __init__(self, optimizer: str = "Adam", columns: int = 16):
        super().__init__(optimizer)
        self.net = nn.Linear(columns, 4, bias=False)


class MLP(Kind):
    def __init__(self, optimizer: str = "Adam", columns: int = 16, width: int = 32, depth: int = 1):
        super().__init__(optimizer)
        layers: list[nn.Module] = [nn.Linear(columns, width), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 10))


class CNN(Kind):
    def __init__(self, optimizer: str = "SGD", columns: int = 16, channels: int = 8, norm: bool = False):
        super().__init__(optimizer)
        side = math.isqrt(columns)
        layers: list[nn.Module] = [nn.Unflatten(1, (1, side, side))]
        for before in (1, channels):
            layers += [nn.Conv2d(before, channels, 3, padding=1), *([nn.BatchNorm2d(channels)] * norm), nn.ReLU()]
        last = nn.Linear(channels * columns // 4, 10)
        self.net = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), last)


class LSTM(Kind):
    def __init__(self, optimizer: str = "AdamW", columns: int = 16, width: int = 8, depth: int = 1):
        super().__init__(optimizer)
        self.side = math.isqrt(columns)
        self.lstm, self.out = nn.LSTM(self.side, width, depth, batch_first=True), nn.Linear(width, 10)

    def net(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x.view(-1, self.side, self.side))[0][:, -1])


class Embedding(Kind):
    def __init__(self, optimizer: str = "Adam", columns: int = 16, words: int = 500, width: int = 8):
        super().__init__(optimizer)
        self.table, self.out = nn.Embedding(words, width), nn.Linear(columns * width, 10)

    def net(self, x: Tensor) -> Tensor:
        return self.out(self.table(x.long()).flatten(1))


class Attention(Kind):
    def __init__(self, optimizer: str = "AdamW", columns: int = 16):
        super().__init__(optimizer)
        self.side = math.isqrt(columns)
        self.layer = nn.TransformerEncoderLayer(self.side, 2, 16, 0.0, batch_first=True)
        self.out = nn.Linear(columns, 10)

    def net(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x.view(-1, self.side, self.side)).flatten(1))
