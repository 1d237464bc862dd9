"""Optimizers as people write them: by element, and by one number of a whole tensor that stays a tensor."""

import torch


class Each(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.change(p, p.grad, group["lr"], self.state[p])
        return loss


class Lion(Each):
    def change(self, p, g, lr, state):
        average = state.setdefault("average", torch.zeros_like(p))
        p.add_(torch.tanh(9 * average + g), alpha=-lr)
        average.lerp_(g, 0.1)


class Lars(Each):
    def change(self, p, g, lr, state):
        p.sub_(lr * p.norm() / (g.norm() + 1e-9) * g)
