"""Optimizers as people write them: by element, over whole matrices, and by one number of a whole tensor."""

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


class Orthogonal(Each):
    """Muon without half precision."""

    def change(self, p, g, lr, state):
        average = state.setdefault("average", torch.zeros_like(p)).lerp_(g, 0.05)
        if p.dim() < 2:
            p.sub_(lr * average)
            return
        x = average.T if len(average) > average.size(1) else average
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        p.add_(x.T if len(average) > average.size(1) else x, alpha=-lr)


class Shampoo(Each):
    def change(self, p, g, lr, state):
        if p.dim() < 2:
            p.sub_(lr * g)
            return
        left = state.setdefault("left", 1e-3 * torch.eye(len(g), dtype=g.dtype)).add_(g @ g.T)
        values, vectors = torch.linalg.eigh(left)
        p.sub_(lr * vectors @ torch.diag(values.clamp(min=1e-9) ** -0.25) @ vectors.T @ g)


class Lamb(Each):
    """Reads numbers from tensors."""

    def change(self, p, g, lr, state):
        p.sub_(lr * p.norm().item() / max(g.norm().item(), 1e-9) * g)


class Lars(Lamb):
    """Keeps the numbers in tensors."""

    def change(self, p, g, lr, state):
        p.sub_(lr * p.norm() / (g.norm() + 1e-9) * g)


class Blockwise(Each):
    """Normalises a rank's part of a matrix."""

    def change(self, p, g, lr, state):
        p, g = (each.to_local() if hasattr(each, "to_local") else each for each in (p, g))
        p.sub_(lr * g / (g.norm() + 1e-9))
