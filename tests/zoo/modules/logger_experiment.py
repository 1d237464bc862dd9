"""Writes through the logger's experiment and into its folder."""

from pathlib import Path

from base import Classifier


class Net(Classifier):
    def on_train_epoch_end(self):
        norm = sum(float(parameter.detach().norm()) for parameter in self.parameters())
        self.logger.experiment.log_metrics({"norm": norm}, step=self.global_step)

    def on_validation_epoch_end(self):
        folder = Path(self.logger.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"epoch-{self.current_epoch}.txt").write_text("seen")
