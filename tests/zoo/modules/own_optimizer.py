"""An optimizer of the user's own, with state that is not only tensors."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=0.003, betas=(0.9, 0.99), decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure() if closure else None
        for group in self.param_groups:
            one, two = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                state["signs"] = state.get("signs", (0, None))[0] + 1, tuple(parameter.shape)
                parameter.mul_(1 - group["lr"] * group["decay"])
                parameter.add_(torch.sign(momentum.lerp(parameter.grad, 1 - one)), alpha=-group["lr"])
                momentum.lerp_(parameter.grad, 1 - two)
        return loss


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, label = batch
        loss = F.cross_entropy(self(x), label)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return Lion(self.parameters())
