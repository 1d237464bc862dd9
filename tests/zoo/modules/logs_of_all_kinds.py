"""Each way to log: by step, by epoch, both, reduced in other ways, from other hooks, numbers and tensors."""

import torch
from base import Classifier
from torch.nn import functional as F
from torchmetrics import MaxMetric, MeanMetric


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.largest, self.mean = MaxMetric(), MeanMetric()

    def on_train_batch_start(self, batch, batch_idx):
        self.log("begun", float(batch_idx), on_step=True)

    def training_step(self, batch, batch_idx):
        x, label = batch
        loss = F.cross_entropy(self(x), label)
        self.log("loss", loss)
        self.log("both", loss, on_step=True, on_epoch=True)
        self.log("epoch", loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("least", loss, on_step=False, on_epoch=True, reduce_fx="min")
        self.log("sum", 1, on_step=False, on_epoch=True, reduce_fx=torch.sum)
        self.log("whole", batch_idx, on_step=True, on_epoch=True)
        self.log("weighed", loss, on_epoch=True, batch_size=batch_idx + 1)
        self.log("largest", self.largest(loss.detach()), on_step=True)
        self.log("metric", self.mean, on_step=True, on_epoch=True)
        self.mean.update(loss.detach(), weight=len(x))
        if batch_idx % 3 == 0:
            self.log("sometimes", loss, on_step=True, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        self.log("epoch_end", float(self.current_epoch))
        self.log("largest_of_all", self.largest.compute())

    def on_validation_epoch_start(self):
        self.log("val_begun", 1.0)

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log("val_step", float(batch_idx), on_step=True, on_epoch=True)

    def on_validation_epoch_end(self):
        self.log("val_end", float(self.global_step))
