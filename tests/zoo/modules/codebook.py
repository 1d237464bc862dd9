"""VQ-VAE: a codebook in buffers that follows the encoder within the step."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self, codes: int = 8, dim: int = 4):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, dim), nn.Linear(dim, 16)
        self.register_buffer("codes", torch.randn(codes, dim))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codes.clone())

    def training_step(self, batch, batch_idx):
        [x] = batch
        z = self.encoder(x)
        nearest = torch.cdist(z, self.codes).argmin(1)
        code = self.codes[nearest]
        hot = F.one_hot(nearest, len(self.codes)).type_as(z)
        with torch.no_grad():
            self.counts = 0.9 * self.counts + 0.1 * hot.sum(0)
            self.sums = 0.9 * self.sums + 0.1 * hot.T @ z
            self.codes = self.sums / self.counts.unsqueeze(1)
        loss = F.mse_loss(self.decoder(z + (code - z).detach()), x) + 0.25 * F.mse_loss(z, code)
        self.log("loss", loss)
        self.log("used", (self.counts > 0.5).sum().float(), reduce_fx=torch.max, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adadelta(self.parameters(), lr=0.5)
