"""The request to the child that measures a module's memory, and its answer."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from data_contracts.handoffs import Record
from data_contracts.messages.children import Child
from data_contracts.messages.message import Message


class SizeRequest(Message):
    """Measure a module's memory.

    Attributes:
        train: the training's settings with the Lightning config inlined.
        project: folder of the user's code.
        columns: of the dataset, name → type; with `rows`, to measure a step as well.
        rows: numbers of rows with which a step is measured; none: it is not.
        steps: of an epoch, for schedules; 0 if unknown.
        dataset_path: folder of the dataset, for a data module that the module's `setup` asks; "" if it is not here.
        accelerated: whether the step is to be measured as it is taken on an accelerator.
        begin: folder with the files of `train.init_from`; "" without.
    """

    train: dict[str, Any]
    project: str
    columns: dict[str, str] = Field(default_factory=dict)
    rows: list[int] = Field(default_factory=list)
    steps: int = 0
    dataset_path: str = ""
    accelerated: bool = False
    begin: str = ""


class StepMemory(Record):
    """The memory of a training step of one rank, in bytes of tensors.

    Attributes:
        rows: of its batch.
        peak: the most that is alive at once.
        step: of what is neither parameters, gradients, optimizer state nor buffers, before the update.
        update: the same during the optimizer's update.
    """

    rows: int
    peak: int
    step: int
    update: int


class ModuleSizes(Message):
    """A module's memory in bytes.

    Attributes:
        state: of the optimizers; 0 where it cannot be known without training, and then `stateless` says why.
        unit: parameters of the largest unit of `shard_modules`.
        layer: parameters of the largest layer.
        unknown: why the module cannot be measured; then all sizes are 0.
        steps: of training, with each number of rows that was asked for.
        unprobed: why a step cannot be measured, as the end of a sentence.
        begun_with: which tensors `train.init_from` gives the module, and which not; "" without.
    """

    parameters: int = 0
    gradients: int = 0
    state: int = 0
    buffers: int = 0
    unit: int = 0
    layer: int = 0
    unknown: str = ""
    stateless: str = ""
    steps: list[StepMemory] = Field(default_factory=list)
    unprobed: str = ""
    begun_with: str = ""


MODULE_MEMORY: Final = Child("training.fit.memory.module_memory", SizeRequest, ModuleSizes)
