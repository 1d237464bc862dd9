"""A body that is frozen at first and tuned later, by Lightning's callback for it."""

import torch
from base import Classifier
from lightning.pytorch.callbacks import BaseFinetuning
from torch import nn


class Thaw(BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=0.001)


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())

    def forward(self, x):
        return self.net(self.backbone(x))

    def configure_callbacks(self):
        return [Thaw()]

    def configure_optimizers(self):
        return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], lr=0.05, momentum=0.9)
