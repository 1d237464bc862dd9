"""Saves checkpoints of its own by the Trainer, clones itself, and looks at what the Trainer shows."""

import copy

from base import Classifier


class Net(Classifier):
    def on_train_epoch_end(self):
        clone = copy.deepcopy(self.net)
        self.log("norm", clone[0].weight.norm())
        self.trainer.save_checkpoint(f"own-{self.current_epoch}.ckpt")
        self.log("steps", float(self.trainer.global_step))
        self.log("batches", float(self.trainer.num_training_batches))
        self.log("epochs", float(self.trainer.max_epochs))
        self.log("val_batches", float(sum(self.trainer.num_val_batches)))
        self.log("rate", self.optimizers().param_groups[0]["lr"])
