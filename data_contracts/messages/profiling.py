"""The request to the child that profiles a short training, and its answer."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from data_contracts.handoffs import Dataset, Record
from data_contracts.messages.children import Child
from data_contracts.messages.message import Message

# The compressed trace in a request's folder.
TRACE = "trace.json.gz"


class ProfileRequest(Message):
    """Take some steps of a training in scratch, and time their parts.

    Attributes:
        train: the training's settings with the Lightning config inlined.
        project: folder of the user's code.
        dataset_path: local folder of the dataset, with the shards of those that it is mixed with.
        nodes, devices: ranks are processes of this machine, as many as the training has.
        warmup: steps before the first that is timed.
        steps: steps that are timed.
        traced: steps of the trace that follow them; 0: no trace, and operations are not counted.
        folder: of the trace, and of what the training writes.
        batches_ready: whether the timed steps take batches that were prepared before them.
        compiled: whether the module's parts are compiled with torch.compile.
    """

    train: dict[str, Any]
    project: str
    dataset: Dataset | None
    dataset_path: str = ""
    mixture: dict[str, Dataset] = Field(default_factory=dict)
    nodes: int = 1
    devices: int = 1
    warmup: int
    steps: int
    traced: int = 0
    folder: str
    batches_ready: bool = False
    compiled: bool = False

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.devices


class Operation(Record):
    """An operation of the traced steps: calls and seconds of its own, over all traced steps."""

    name: str
    calls: int
    seconds: float


class StepProfile(Message):
    """Where the time of the timed steps went, on rank 0.

    Attributes:
        device: the type of the device, such as cpu.
        rows: of a step, over all ranks; accumulate: micro-batches of a step and rank.
        steps_per_epoch: 0 if the user's data module decides.
        step_s: seconds of each timed step, without validation.
        phases: phase → seconds over all timed steps.
        data_cause: what took longest while batches were prepared.
        exchange_s: seconds that the backward passes of the middle step take longer than those of one that exchanges no
            gradients; None: not measured.
        flops: floating-point operations of a step on this rank; bytes: that its operations read and wrote; 0: not
            counted.
        peak_flops, peak_bytes: per second, as this device does them with large operands.
        checkpoint_s: seconds that a checkpoint holds the steps; None: not measured.
        traced: steps in the trace; cut: whether later events were left out of it.
    """

    device: str
    world_size: int
    rows: int
    accumulate: int
    steps_per_epoch: int
    step_s: list[float]
    phases: dict[str, float]
    data_cause: str = ""
    exchange_s: float | None = None
    flops: float = 0.0
    bytes: float = 0.0
    peak_flops: float = 0.0
    peak_bytes: float = 0.0
    checkpoint_s: float | None = None
    traced: int = 0
    cut: bool = False
    operations: list[Operation] = Field(default_factory=list)


PROFILE: Final = Child("training.profile.worker", ProfileRequest, StepProfile)
