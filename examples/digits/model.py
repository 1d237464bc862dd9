"""A small convolutional classifier for the digits: a plain LightningModule that knows nothing of Trainwright."""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DigitClassifier(L.LightningModule):
    """Two convolutions and two dense layers; a batch is (pixels [B, 64] of 0 to 16, labels [B])."""

    def __init__(self, width: int = 32, dropout: float = 0.2, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width * 16, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return self.net(pixels.float().view(-1, 1, 8, 8) / 16)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        pixels, labels = batch
        loss = F.cross_entropy(self(pixels), labels.long())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        pixels, labels = batch
        logits = self(pixels)
        self.log("val_loss", F.cross_entropy(logits, labels.long()), prog_bar=True, sync_dist=True)
        self.log("val_acc", (logits.argmax(1) == labels).float().mean(), prog_bar=True, sync_dist=True)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)
