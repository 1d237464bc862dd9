"""A callback of the user's own: it keeps an average of the weights, exchanges it for validation, and has a state."""

import lightning as L
import torch
from base import Classifier


class Average(L.Callback):
    def __init__(self, decay: float = 0.9):
        self.decay, self.average, self.backup, self.updates = decay, {}, {}, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.updates += 1
        for name, parameter in pl_module.named_parameters():
            value = parameter.detach()
            self.average[name] = value.clone() if name not in self.average else self.average[name].lerp(value, 0.1)

    def on_validation_start(self, trainer, pl_module):
        self.exchange(pl_module, self.average)

    def on_validation_end(self, trainer, pl_module):
        self.exchange(pl_module, self.backup)

    def exchange(self, pl_module, values):
        now = {name: parameter.detach().clone() for name, parameter in pl_module.named_parameters()}
        with torch.no_grad():
            for name, parameter in pl_module.named_parameters():
                parameter.copy_(values.get(name, parameter))
        self.backup = now

    def on_train_end(self, trainer, pl_module):
        self.exchange(pl_module, self.average)

    def state_dict(self):
        return {"average": self.average, "updates": self.updates}

    def load_state_dict(self, state):
        self.average, self.updates = state["average"], state["updates"]


class Net(Classifier):
    def configure_callbacks(self):
        return [Average()]
