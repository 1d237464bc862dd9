"""Three labels at once, with metrics that are part of the module."""

import torch
from base import Classifier
from torch.nn import functional as F
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MultilabelAccuracy, MultilabelAUROC, MultilabelF1Score


class Net(Classifier):
    def __init__(self):
        super().__init__()
        self.scores = MetricCollection([MultilabelAccuracy(num_labels=3), MultilabelF1Score(num_labels=3)])
        self.val_auroc = MultilabelAUROC(num_labels=3, thresholds=10)
        self.mean_loss = MeanMetric()

    def training_step(self, batch, batch_idx):
        x, tags = batch
        logits = self(x)
        loss = F.binary_cross_entropy_with_logits(logits, tags)
        self.log_dict(self.scores(logits.sigmoid(), tags.int()))
        self.mean_loss.update(loss.detach())
        self.log("mean_loss", self.mean_loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, tags = batch
        self.val_auroc.update(self(x).sigmoid(), tags.int())

    def on_validation_epoch_end(self):
        self.log("val_auroc", self.val_auroc.compute())
        self.val_auroc.reset()

    def predict_step(self, batch, batch_idx):
        return torch.sigmoid(self(batch[0]))
