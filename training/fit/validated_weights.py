"""Which weights the metric of `train.select` was measured on, where a validation measures it.

A checkpoint may hold others: later steps change them, and so do callbacks that average weights, at the end of a
training or for each checkpoint. The value of other weights says nothing about a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import lightning as L

from data_contracts.pipeline_spec.train import SelectSpec
from training.fit.agreement import Agreement
from training.fit.reference_loss import saved_weights
from training.fit.replica_check import checksum

log = logging.getLogger(__name__)


class ValidatedWeights(L.Callback):
    """Notes which weights were validated last; comes after the user's callbacks, which may exchange weights for that.

    Attributes:
        step: after which step a validation last measured the metric; None if it comes from elsewhere.
    """

    def __init__(self, select: SelectSpec | None, agreement: Agreement) -> None:
        self.step: int | None = None
        self._metric, self._agreement = None if select is None else select.metric, agreement
        self._before: Any = None
        self._sum: int | None = None
        self._warned = False

    def state_dict(self) -> dict[str, Any]:
        """The step, for a resumed training; empty where no validation measures the metric."""
        return {} if self.step is None else {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the step. The weights are noted again at the next validation."""
        self.step = state_dict["step"]

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the metric's value so far."""
        self._before = trainer.callback_metrics.get(self._metric) if self._metric else None

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Note the weights, at the first batch."""
        if self._metric and args[2] == 0:
            self._sum = int(checksum(pl_module))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note whether the metric was measured. Collective."""
        if self._metric is None or trainer.sanity_checking:
            return
        # Lightning makes a new tensor for each value.
        if self._agreement.total(int(trainer.callback_metrics.get(self._metric) is not self._before)):
            self.step = trainer.global_step

    def are_in(self, state_dict: Mapping[str, Any], trainer: L.Trainer) -> bool:
        """Whether a checkpoint with this state holds the weights on which the metric was measured; also true where no
        validation measures it. Collective.
        """
        if self.step is None:
            return True
        module = trainer.lightning_module
        same = self._sum == int(checksum(module, saved_weights(module, state_dict)))
        if self._agreement.total(int(not same)) == 0:
            return True
        if self.step == trainer.global_step and not self._warned and trainer.is_global_zero:
            self._warned = True
            log.warning(
                "train.select does not choose the checkpoint of step %d: %s was measured before a hook changed the "
                "weights that it holds.",
                *(self.step, self._metric),
            )
        return False
