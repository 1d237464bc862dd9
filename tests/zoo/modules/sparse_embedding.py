"""A table of words with sparse gradients, and an optimizer of its own for it."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.words = nn.Embedding(50, 8, sparse=True)
        self.out = nn.Linear(8, 3)

    def forward(self, word):
        return self.out(self.words(word))

    def training_step(self, batch, batch_idx):
        word, label = batch
        loss = F.cross_entropy(self(word), label)
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        self.log("loss", loss)

    def configure_optimizers(self):
        return [
            torch.optim.SparseAdam(self.words.parameters(), lr=0.01),
            torch.optim.Adam(self.out.parameters(), lr=0.01),
        ]
