"""Saves its head alone; the frozen body is made anew from its seed."""

import torch
from base import Classifier
from torch import nn


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.strict_loading = False
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.body = nn.Linear(16, 16).requires_grad_(False)

    def forward(self, x):
        return self.net(torch.tanh(self.body(x)))

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        return type(state)((name, value) for name, value in state.items() if not name.startswith("body"))
