"""A step that leaves batches out, and a hook that ends the epoch early."""

from base import Classifier


class Net(Classifier):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.current_epoch == 1 and batch_idx == 8 else None

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx % 5 == 4 else loss
