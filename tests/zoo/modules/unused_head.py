"""A second head that is trained only now and then."""

from base import Classifier
from torch import nn
from torch.nn import functional as F


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.side = nn.Linear(16, 1)

    def training_step(self, batch, batch_idx):
        x, label, y = batch
        loss = F.cross_entropy(self(x), label)
        if batch_idx % 4 == 0:
            loss = loss + 0.1 * F.mse_loss(self.side(x).squeeze(1), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch[:2], batch_idx)
