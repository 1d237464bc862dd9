"""A sequence model over packed rows of different lengths."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence


class Net(L.LightningModule):
    def __init__(self, width: int = 16):
        super().__init__()
        self.table = nn.Embedding(50, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(width, 3)

    def forward(self, tokens, tokens_length):
        packed = pack_padded_sequence(self.table(tokens), tokens_length.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        return self.out(hidden[-1])

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch["tokens"], batch["tokens_length"]), batch["label"])
        self.log("loss", loss, batch_size=len(batch["label"]))
        return loss

    def validation_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch["tokens"], batch["tokens_length"]), batch["label"])
        self.log("val_loss", loss, batch_size=len(batch["label"]))

    def predict_step(self, batch, batch_idx):
        return self(batch["tokens"], batch["tokens_length"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)
