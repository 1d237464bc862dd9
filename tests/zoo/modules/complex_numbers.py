"""A filter of complex numbers in the frequencies of its input."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(9, dtype=torch.complex64))
        self.register_buffer("phase", torch.exp(1j * torch.arange(9)))
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(torch.fft.irfft(torch.fft.rfft(x) * self.filter * self.phase, n=16))

    def training_step(self, batch, batch_idx):
        x, label = batch
        loss = F.cross_entropy(self(x), label)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)
