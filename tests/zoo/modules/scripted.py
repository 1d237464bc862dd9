"""A part that TorchScript compiles, which counts its calls."""

import torch
from base import Classifier
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return torch.relu(self.layer(x)) / (1 + self.calls % 2)


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(torch.jit.script(Block()), nn.Linear(16, 3))
