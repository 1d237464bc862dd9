"""What ours and its peers train, as a user would write it: a GPT and a small perceptron that note when steps begin."""

# ruff: noqa: D102
from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_TICKS = 1_000_000


class Timed(L.LightningModule):
    """Its forward gives a batch's loss. Writes the times of its steps and the memory they took to BENCH_TIMES.

    With BENCH_TICKS, the start of each step stands in that file (float64, seconds of a clock that all processes share)
    as soon as it came; the rest are zeros.

    Args:
        marks: the two steps between which is measured; there a device is waited for.

    Attributes:
        ended: whether a loop is to end before its last step.
    """

    ended = False

    def __init__(self, marks: tuple[int, int]) -> None:
        super().__init__()
        self.marks = tuple(marks)
        self.times: list[float] = []
        self.ticks: np.ndarray | None = None

    def tick(self) -> None:
        """A step begins."""
        if len(self.times) in self.marks and torch.cuda.is_available():
            torch.cuda.synchronize()
        if not self.times and os.environ.get("RANK", "0") == "0" and "BENCH_TICKS" in os.environ:
            self.ticks = np.memmap(os.environ["BENCH_TICKS"], np.float64, "w+", shape=MOST_TICKS)
        self.times.append(time.perf_counter())
        if self.ticks is not None:
            self.ticks[len(self.times) - 1] = self.times[-1]

    def write(self) -> None:
        """Rank 0 says how long a step took and how much memory."""
        first, last = self.marks
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        told = {"step_s": (self.times[last] - self.times[first]) / (last - first), "peak_bytes": peak}
        if os.environ.get("RANK", "0") == "0":
            Path(os.environ["BENCH_TIMES"]).write_text(json.dumps(told))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.tick()
        return self(batch)

    def on_train_end(self) -> None:
        self.write()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        fused = next(self.parameters()).is_cuda
        return torch.optim.AdamW(self.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each on a normalised residual stream [B, T, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        split = self.query_key_value(self.norm_attention(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm_mlp(x))


class GPT(Timed):
    """Predicts each next token of {"tokens": [B, context + 1]}; as it comes 124 million parameters, like GPT-2."""

    def __init__(
        self,
        marks: tuple[int, int],
        vocabulary: int = 50_257,
        context: int = 1024,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
    ) -> None:
        super().__init__(marks)
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        tokens = batch["tokens"].long()
        given = tokens[:, :-1]
        x = self.embed(given) + self.position(torch.arange(given.shape[1], device=given.device))
        logits = F.linear(self.norm(self.blocks(x)), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


class Perceptron(Timed):
    """Two layers over {"x": [B, 20], "label": [B]}: a step of well under a millisecond."""

    def __init__(self, marks: tuple[int, int], width: int = 64) -> None:
        super().__init__(marks)
        self.layers = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(self.layers(batch["x"]), batch["label"])
