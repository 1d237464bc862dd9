"""A Wasserstein critic with a penalty on its gradients, and a generator every second batch."""

import lightning as L
import torch
from torch import nn


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16))
        self.critic = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def penalty(self, real, fake):
        mix = torch.rand(len(real), 1, device=self.device)
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        [gradient] = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        return ((gradient.norm(dim=1) - 1) ** 2).mean()

    def training_step(self, batch, batch_idx):
        [real] = batch
        generator, critic = self.optimizers()
        fake = self.generator(torch.randn(len(real), 4, device=self.device))
        loss = self.critic(fake.detach()).mean() - self.critic(real).mean() + 10 * self.penalty(real, fake.detach())
        critic.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(critic, gradient_clip_val=1.0)
        critic.step()
        self.log("critic", loss)
        if batch_idx % 2:
            loss = -self.critic(fake).mean()
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()
            self.log("generator", loss)
        for schedule in self.lr_schedulers():
            schedule.step()

    def configure_optimizers(self):
        both = [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.generator, self.critic)]
        return both, [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95) for optimizer in both]
