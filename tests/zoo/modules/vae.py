"""A variational autoencoder; the weight of its KL term rises with the steps."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self, latent: int = 4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self.decoder(z), mean, log_var

    def training_step(self, batch, batch_idx):
        rebuilt, mean, log_var = self(batch[0])
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(-1).mean()
        error = F.mse_loss(rebuilt, batch[0])
        self.log_dict({"kl": kl, "error": error}, on_step=True, on_epoch=True)
        return error + kl * min(1.0, self.global_step / 10)

    def validation_step(self, batch, batch_idx):
        self.log("val_error", F.mse_loss(self(batch[0])[0], batch[0]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.005)
