"""A small decoder-only transformer over bytes: a plain LightningModule that knows nothing of Trainwright."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each on a normalised residual stream [B, T, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = self.query_key_value(self.norm_attention(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norm_mlp(x))


class ByteGPT(L.LightningModule):
    """Predicts each next byte; a batch is {"tokens": uint8 [B, T + 1]} and every loss is in bits per byte."""

    def __init__(
        self,
        context: int = 128,
        width: int = 128,
        depth: int = 3,
        heads: int = 4,
        lr: float = 4e-3,
        weight_decay: float = 0.05,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.weight_decay = weight_decay
        self.embed = nn.Embedding(BYTES, width)
        self.position = nn.Embedding(context, width)
        # Each place also sees the three before it at once: words form in hundreds of steps instead of thousands.
        self.local = nn.Conv1d(width, width, kernel_size=4)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        nn.init.normal_(self.embed.weight, std=0.3)
        nn.init.normal_(self.position.weight, std=0.3)
        nn.init.zeros_(self.head.weight)  # begins at exactly 8 bits per byte

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        x = x + self.local(F.pad(x.transpose(1, 2), (3, 0))).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)))

    def bits_per_byte(self, batch: dict[str, Tensor]) -> Tensor:
        """Mean surprise over the batch's bytes, in bits."""
        tokens = batch["tokens"].long()
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / math.log(2)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        bits = self.bits_per_byte(batch)
        self.log("train_bits_per_byte", bits, prog_bar=True)
        return bits

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("val_bits_per_byte", self.bits_per_byte(batch), prog_bar=True, sync_dist=True)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("bits_per_byte", self.bits_per_byte(batch), sync_dist=True)

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int = 0) -> Tensor:
        """How likely each byte is after each row's text: logits [B, 256]."""
        return self(batch["tokens"][:, 1:].long())[:, -1]

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, betas=(0.9, 0.95), weight_decay=self.weight_decay)
        steps = self.trainer.max_steps
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / 20, max(0.02, 1.4 * (1 - step / steps)))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
