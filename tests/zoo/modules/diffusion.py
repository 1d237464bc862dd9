"""A denoising diffusion model of rows; its generator and schedule are the module's."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self, steps: int = 20):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(17, 32), nn.SiLU(), nn.Linear(32, 16))
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-3, 0.2, steps), 0))

    def forward(self, x, t):
        return self.net(torch.cat([x, t[:, None] / self.hparams.steps], 1))

    def training_step(self, batch, batch_idx):
        [x] = batch
        t = torch.randint(self.hparams.steps, (len(x),), device=self.device)
        noise, kept = torch.randn_like(x), self.kept[t][:, None]
        loss = F.mse_loss(self(kept.sqrt() * x + (1 - kept).sqrt() * noise, t), noise)
        self.log("loss", loss)
        return loss

    @torch.no_grad()
    def sample(self, count):
        x = torch.randn(count, 16, device=self.device)
        for t in reversed(range(self.hparams.steps)):
            x = x - 0.1 * self(x, torch.full((count,), t, device=self.device)) + 0.05 * torch.randn_like(x)
        return x

    def on_validation_epoch_end(self):
        self.log("spread", self.sample(8).std())

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.RAdam(self.parameters(), lr=0.01)
