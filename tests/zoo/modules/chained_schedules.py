"""Schedules of schedules: a warm-up, then restarts, by steps; and one by a metric that is there only sometimes."""

import torch
from base import Classifier
from torch.optim import lr_scheduler as schedules


class Net(Classifier):
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02, fused=True)
        warm = schedules.LinearLR(optimizer, 0.1, total_iters=5)
        waves = schedules.CosineAnnealingWarmRestarts(optimizer, T_0=4, T_mult=2)
        both = schedules.SequentialLR(optimizer, [warm, waves], milestones=[5])
        plateau = schedules.ReduceLROnPlateau(optimizer, patience=0, factor=0.9, threshold=1.0)
        return [optimizer], [
            {"scheduler": both, "interval": "step", "frequency": 2, "name": "both"},
            {"scheduler": plateau, "monitor": "loss_epoch", "interval": "epoch", "strict": False},
        ]

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss_epoch", loss, on_step=False, on_epoch=True)
        return loss
