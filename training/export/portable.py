"""The module as it is exported: from named inputs to named outputs, with the preprocessing that a batch gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from data_contracts.errors import UserCodeError
from training.score.predictions import NAME
from training.user.forward_inputs import call_forward

Inputs = dict[str, Tensor]
Batch = Callable[[Inputs], Any]


@dataclasses.dataclass
class Course:
    """How far a call came. torch.export puts a module's own attributes back after a trace, so they cannot tell.

    Attributes:
        at: the part that runs, `batch`, `transform` or `step`; after an exception, the part that raised it.
        names: of the outputs.
        left_out: parts of the step's result that are not tensors.
        places: operation → the first line of the user's that calls it, as part of a sentence.
    """

    at: str = ""
    places: dict[str, str] = dataclasses.field(default_factory=dict)
    names: list[str] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)


class Portable(nn.Module):
    """Maps inputs, (rows, *) by name, to outputs by name, as Lightning's Trainer would call the module for a batch.

    Attributes:
        course: of the last call.
        absent: inputs on which the outputs do not depend: name → an input of no rows; zeros take their place.
    """

    def __init__(
        self,
        module: L.LightningModule,
        batch: Batch,
        transform: Callable[[Any], Any] | None,
        precision: Any,
        targets: Sequence[str],
        columns: Any = None,
    ) -> None:
        """`targets` and `columns` as in `call_forward`; the rest is what comes before the module's step."""
        super().__init__()
        self.module = module
        self.course = Course()
        self.absent: Inputs = {}
        self._batch, self._transform, self._precision = batch, transform, precision
        self._targets, self._columns = set(targets), columns

    @property
    def step(self) -> str:
        """The method that it calls, as evaluate chooses it: `predict_step` or `forward`."""
        return "predict_step" if is_overridden("predict_step", self.module, L.LightningModule) else "forward"

    def forward(self, inputs: Inputs) -> Inputs:
        """The outputs for these inputs."""
        course = self.course
        course.at = "batch"
        batch = self._batch(inputs if not self.absent else self._completed(inputs))
        if self._transform is not None:
            course.at = "transform"
            batch = self._transform(batch)
        course.at = "step"
        module = self.module
        batch = module.on_before_batch_transfer(batch, 0)
        batch = module.on_after_batch_transfer(batch, 0)
        batch = self._precision.convert_input(batch)
        with self._precision.forward_context():
            result = module.predict_step(batch, 0) if self.step == "predict_step" else self._called(batch)
        course.left_out = []
        outputs = named(result, course.left_out)
        outputs = {name if name not in inputs else f"output_{name}": value for name, value in outputs.items()}
        course.at, course.names = "", list(outputs)
        return outputs

    def _called(self, batch: Any) -> Any:
        return call_forward(self.module, batch, self._targets, self._columns)

    def _completed(self, inputs: Inputs) -> Inputs:
        first = next(iter(inputs.values()))
        rows = first.shape[0]
        zeros = {name: first.new_zeros((rows, *one.shape[1:]), dtype=one.dtype) for name, one in self.absent.items()}
        return {**inputs, **zeros}


def named(result: Any, left_out: list[str], name: str = "") -> Inputs:
    """The tensors in what a step returned: a tensor is called `prediction`, others by their key, field or position.

    Args:
        left_out: gets the names of the parts that are not tensors.

    Raises: UserCodeError if there is no tensor.
    """
    found: Inputs = {}
    for path, value in _leaves(result, name):
        if isinstance(value, Tensor):
            found[path or NAME] = value
        else:
            left_out.append(f"{path or NAME} ({type(value).__name__})")
    if not found and not name:
        raise UserCodeError(
            f"The module returns a {type(result).__name__} without a tensor, so there is nothing to export.",
            remedy="Return a tensor, or a dictionary or tuple of tensors.",
        )
    return found


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        parts = [(str(key), one) for key, one in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = list(zip(value._fields, value, strict=True))
    elif isinstance(value, tuple | list):
        parts = [(str(at) if path else f"output_{at}", one) for at, one in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    else:
        return [(path, value)]
    return [leaf for key, one in parts for leaf in _leaves(one, f"{path}_{key}" if path else key)]
