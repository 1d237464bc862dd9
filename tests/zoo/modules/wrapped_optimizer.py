"""Lookahead around another optimizer, and an optimizer for matrices alone beside one for the rest."""

import torch
from base import Classifier


class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner, every: int = 4, share: float = 0.5):
        self.inner, self.every, self.share = inner, every, share
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = self.inner.step(closure)
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", parameter.clone())
                if self.count % self.every == 0:
                    parameter.copy_(slow.lerp_(parameter, self.share))
        return loss

    def state_dict(self):
        return {"inner": self.inner.state_dict(), "outer": super().state_dict(), "count": self.count}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        super().load_state_dict(state["outer"])
        self.param_groups, self.count = self.inner.param_groups, state["count"]


class Net(Classifier):
    def configure_optimizers(self):
        return Lookahead(torch.optim.RAdam(self.parameters(), lr=0.02))


class Muon(Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self):
        matrices = [parameter for parameter in self.parameters() if parameter.dim() == 2]
        rest = [parameter for parameter in self.parameters() if parameter.dim() != 2]
        return [torch.optim.Muon(matrices, lr=0.01), torch.optim.Adafactor(rest, lr=0.01)]
