"""Batch norm, clipping and the gradients' norm, over four micro-batches."""

from base import Classifier
from lightning.pytorch.utilities import grad_norm
from torch import nn


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(grad_norm(self.net, norm_type=2))
