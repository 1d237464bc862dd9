"""Modules that sharing their work over ranks could get wrong, in float64, so that 1e-10 tells right from wrong."""

import lightning as L
import optimizers
import torch
from torch import nn
from torch.nn import functional as F


class Base(L.LightningModule):
    """Logs nothing, draws nothing; `optimizer` is the name of a class of `torch.optim` or of `optimizers.py`."""

    def __init__(self, optimizer: str = "SGD", lr: float = 0.1):
        super().__init__()
        self.optimizer, self.lr = optimizer, lr
        self.make()
        self.double()

    def make(self):
        self.body = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh())
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.body(x.double()))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        found = getattr(optimizers, self.optimizer, None) or getattr(torch.optim, self.optimizer)
        matrices = [each for each in self.parameters() if each.dim() == 2]
        return found(matrices if self.optimizer == "Muon" else self.parameters(), lr=self.lr)


class Embedding(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x @ self.weight.T


class Unembedding(Embedding):
    def forward(self, x):
        return x @ self.weight


class Tied(Base):
    """One weight in two modules, each of a class that one would shard."""

    def make(self):
        super().make()
        self.inlet = Embedding(nn.Parameter(torch.randn(6, 4)))
        self.outlet = Unembedding(self.inlet.weight)

    def forward(self, x):
        return super().forward(self.outlet(torch.tanh(self.inlet(x.double()))))


class Scaled(Base):
    """Parameters that are one number: used by every step, by the steps that see some rows, and never."""

    def make(self):
        super().make()
        self.scale, self.offset = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(0.5))
        self.never = nn.Parameter(torch.tensor(2.0))

    def training_step(self, batch, batch_idx):
        x, y = batch
        x = x.double()
        loss, far = F.cross_entropy(self(x) * self.scale, y), x[:, 0] > 1
        return loss + (self.offset * x[far, 0]).sum() / len(x) if far.any() else loss


class Sometimes(Base):
    """Heads that are used by the steps of ranks that see some rows, by every third step, and never."""

    def __init__(self, optimizer: str = "AdamW", lr: float = 0.1, alike: bool = False):
        super().__init__(optimizer, lr)
        self.alike = alike

    def make(self):
        super().make()
        self.far, self.third, self.never = nn.Linear(5, 1), nn.Linear(5, 1), nn.Linear(5, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = self.body(x.double())
        loss, far = F.cross_entropy(self.head(hidden), y), x[:, 0] > 1
        if self.alike or far.any():
            loss = loss + self.far(hidden[far]).square().sum() / len(x)
        if self.training and batch_idx // self.trainer.accumulate_grad_batches % 3 == 2:
            loss = loss + self.third(hidden).square().mean()
        return loss


class Toggles(Base):
    """Two optimizers that take turns, as a GAN has them; each sees the gradients of its own parameters alone."""

    def __init__(self, optimizer: str = "Adam", lr: float = 0.01):
        super().__init__(optimizer, lr)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        x, y = batch
        for optimizer, sign in zip(self.optimizers(), (1, -0.5), strict=True):
            self.toggle_optimizer(optimizer)
            loss = sign * F.cross_entropy(self(x.double()), y)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        return loss

    def configure_optimizers(self):
        found = getattr(torch.optim, self.optimizer)
        return [found(part.parameters(), lr=self.lr) for part in (self.body, self.head)]


class Lazy(Base):
    """Layers that get their shapes from the first batch."""

    def make(self):
        super().make()
        self.body = nn.Sequential(nn.LazyLinear(7), nn.Tanh(), nn.LazyBatchNorm1d(affine=False), nn.LazyLinear(5))
        self.body[2].eval()


class Mixed(Base):
    """Blocks of float64 between which a norm has float32."""

    def __init__(self, optimizer: str = "SGD", lr: float = 0.1):
        super().__init__(optimizer, lr)
        self.norm.float()

    def make(self):
        super().make()
        self.norm = nn.LayerNorm(5)

    def forward(self, x):
        return self.head(self.norm(self.body(x.double()).float()).double())
