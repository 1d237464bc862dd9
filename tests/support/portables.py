"""Modules that are exported in tests: what they return, and whether they can be traced."""

from __future__ import annotations

import collections
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

Pair = collections.namedtuple("Pair", "mean spread")


class Base(L.LightningModule):
    """A small network with a buffer, on (rows, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Any:
        return self.net(x * self.scale)


class Plain(Base):
    """Without a predict_step."""


class Classes(Base):
    """Its predict_step chooses a class, and returns more than tensors."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self(batch[0])
        return {"label": logits.argmax(1), "probabilities": logits.softmax(1), "note": "of two", "nothing": None}


class Tuples(Base):
    """It returns a tuple with a named tuple in it."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self(batch[0])
        return logits, Pair(logits.mean(1), logits.std(1))


class Hooked(Base):
    """It prepares a batch in Lightning's hook."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] / 2, batch[1]

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0])


class Words(L.LightningModule):
    """Whole numbers in a dictionary; the outputs need both entries."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.embed(batch["words"].long()) * batch["weights"].unsqueeze(-1)).sum(1)


class Branch(Base):
    """It asks for a value of the data."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self(batch[0])
        if logits.sum() > 0:
            logits = -logits
        return logits


class Counting(Base):
    """It takes the number of rows as a number."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0]) / len(batch[0])


class Foreign(Base):
    """It leaves torch."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return torch.from_numpy(self(batch[0]).detach().numpy() * 2)


class Decomposed(Base):
    """ONNX has no singular values."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return torch.linalg.svd(self(batch[0]), full_matrices=False)[1]


class Raising(Base):
    """It fails."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        raise ValueError("no such thing")


class Empty(Base):
    """It returns no tensor."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return {"rows": "many"}
