"""Ends its training by itself, and changes its weights at the end."""

import torch
from base import Classifier


class Net(Classifier):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step == 17:
            self.trainer.should_stop = True

    def on_train_epoch_start(self):
        torch.manual_seed(100 + self.current_epoch)

    def on_train_end(self):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.round_(decimals=3)
