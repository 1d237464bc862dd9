"""SAM: each step climbs to the worst place nearby, and descends from there; by hand."""

import torch
from base import Classifier
from torch.nn import functional as F


class Net(Classifier):
    def __init__(self, radius: float = 0.05):
        super().__init__()
        self.automatic_optimization = False
        self.radius = radius

    def training_step(self, batch, batch_idx):
        x, label = batch
        optimizer = self.optimizers()
        loss = F.cross_entropy(self(x), label)
        self.manual_backward(loss)
        parameters = [parameter for parameter in self.parameters() if parameter.grad is not None]
        with torch.no_grad():
            norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm() + 1e-12
            climbs = [parameter.grad * (self.radius / norm) for parameter in parameters]
            torch._foreach_add_(parameters, climbs)
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(x), label))
        with torch.no_grad():
            torch._foreach_sub_(parameters, climbs)
        optimizer.step()
        optimizer.zero_grad()
        self.log("loss", loss, prog_bar=True)
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
