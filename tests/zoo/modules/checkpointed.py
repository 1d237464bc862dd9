"""Gradient checkpointing of blocks with dropout, and tied weights."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Net(L.LightningModule):
    def __init__(self, width: int = 16):
        super().__init__()
        self.table = nn.Embedding(50, width, padding_idx=0)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.out = nn.Linear(width, 50, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.table(tokens)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, mask, use_reentrant=False)
        return self.out(hidden)

    def loss(self, batch):
        tokens = batch["tokens"]
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("perplexity", self.loss(batch).exp())

    def predict_step(self, batch, batch_idx):
        return self(batch["tokens"])[:, -1, :3]

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01, betas=(0.9, 0.95))
        warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warm, "interval": "step"}}
