"""A GAN: two optimizers, by hand."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self, latent: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 16))
        self.discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, x):
        return self.discriminator(x)

    def adversarial(self, logits, real):
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def training_step(self, batch, batch_idx):
        x = batch[0]
        g, d = self.optimizers()
        noise = torch.randn(len(x), self.hparams.latent, device=self.device)

        self.toggle_optimizer(g)
        loss = self.adversarial(self.discriminator(self.generator(noise)), True)
        g.zero_grad()
        self.manual_backward(loss)
        g.step()
        self.untoggle_optimizer(g)
        self.log("g_loss", loss, prog_bar=True)

        self.toggle_optimizer(d)
        fake = self.generator(noise).detach()
        loss = (self.adversarial(self(x), True) + self.adversarial(self(fake), False)) / 2
        d.zero_grad()
        self.manual_backward(loss)
        d.step()
        self.untoggle_optimizer(d)
        self.log("d_loss", loss, prog_bar=True)

    def configure_optimizers(self):
        betas = (0.5, 0.999)
        return [
            torch.optim.Adam(self.generator.parameters(), lr=0.002, betas=betas),
            torch.optim.Adam(self.discriminator.parameters(), lr=0.002, betas=betas),
        ], []
