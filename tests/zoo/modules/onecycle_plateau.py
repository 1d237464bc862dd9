"""A schedule per step that asks for the number of steps, and one that looks at a metric."""

import torch
from base import Classifier


class Net(Classifier):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return [optimizer], [
            {"scheduler": cycle, "interval": "step"},
            {"scheduler": plateau, "interval": "epoch", "monitor": "val_loss"},
        ]

    def on_train_epoch_end(self):
        self.log("batches", float(self.trainer.num_training_batches))
        self.log("at", float(self.lr_schedulers()[0].last_epoch))
