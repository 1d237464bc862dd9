"""A backbone whose weights `prepare_data` fetches and `setup` loads."""

from pathlib import Path

import torch
from base import Classifier
from torch import nn

CACHE = Path("backbone.pt")


class Net(Classifier):
    def prepare_data(self):
        values = torch.linspace(-1, 1, 32 * 16).reshape(32, 16)
        torch.save({"weight": values.sin() / 4, "bias": values[:, 0]}, CACHE)

    def setup(self, stage):
        self.net[0].load_state_dict(torch.load(CACHE, weights_only=True))
        self.net[0].requires_grad_(False)

    def on_train_epoch_start(self):
        assert isinstance(self.net[0], nn.Linear)
        self.net[0].eval()
