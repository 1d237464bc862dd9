"""LBFGS, which calls the step several times."""

import torch
from base import Classifier


class Net(Classifier):
    def __init__(self):
        super().__init__(dropout=0.0)

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.2, max_iter=3, history_size=4)
