"""Clips its gradients by itself, scales its loss, and warms its learning rate up in `optimizer_step`."""

import torch
from base import Classifier


class Net(Classifier):
    def backward(self, loss, *args, **kwargs):
        (2 * loss).backward(*args, **kwargs)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        for parameter in self.parameters():
            parameter.grad.div_(2)
        self.clip_gradients(optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm="value")

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, (self.trainer.global_step + 1) / 5)
        optimizer.step(closure=optimizer_closure)
        self.log("lr", optimizer.param_groups[0]["lr"])

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
