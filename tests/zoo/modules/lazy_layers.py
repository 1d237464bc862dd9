"""Layers that learn their width from an example, and batch norm of another momentum."""

import torch
from base import Classifier
from torch import nn


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.example_input_array = torch.zeros(2, 16)
        self.net = nn.Sequential(nn.LazyLinear(32), nn.LazyBatchNorm1d(momentum=0.3), nn.GELU(), nn.LazyLinear(3))

    def configure_model(self):
        self.net(self.example_input_array)
