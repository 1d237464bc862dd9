"""Requests to, and answers of, the children of single commands: `export`, `profile`, `estimate` and `reap`.

The child of `export` exports a checkpoint, that of `profile` profiles a short training, that of `estimate` measures a
module's memory, and the reaper reads the records of a store in a child of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field

from data_contracts.handoffs import Dataset, Record, Ref
from data_contracts.messages import Message
from data_contracts.messages.children import Child, OfCheckpoint, StoreAddress

Format = Literal["safetensors", "huggingface", "torch", "onnx"]
# The compressed trace in a request's folder.
TRACE = "trace.json.gz"


class Tolerance(Record):
    """How far outputs may differ from the checkpoint's: |difference| <= atol + rtol * |checkpoint's value|."""

    atol: float = Field(ge=0)
    rtol: float = Field(ge=0)


class TensorFacts(Record):
    """One input or output of an exported model.

    Attributes:
        dtype: NumPy's name of the type.
        shape: sizes; `rows` where the number of rows stands, another name for any other size that may vary.
        column: the type of the dataset's column that it is, as `Dataset.columns` says it; "" if it is not a column.
    """

    name: str
    dtype: str
    shape: list[int | str]
    column: str = ""


class Agreement(Record):
    """How far an output of the exported file was from the checkpoint's on the sample.

    Attributes:
        largest: the largest difference of two values.
        tolerance: the one that was asked for; 0 for whole numbers.
    """

    output: str
    largest: float
    tolerance: Tolerance


class ExportRequest(OfCheckpoint):
    """Export a checkpoint to a file that runs without Trainwright.

    Attributes:
        dataset: the one that it was trained on; None with external data.
        split: whose rows are compared.
        targets: entries of a batch that metrics take for the truth; a module without a `predict_step` does not get
            them.
        folder: an existing folder of this machine that gets the files.
        tolerance: for outputs of floating point numbers; None: by their type.
    """

    dataset: Dataset | None
    split: str
    targets: list[str]
    format: Format
    folder: str
    tolerance: Tolerance | None = None

    @property
    def needs(self) -> list[Ref | Dataset]:
        """The code that trained the checkpoint, and its dataset."""
        return [self.code] if self.dataset is None else [self.code, self.dataset]


class Exported(Message):
    """What was written, and how it compares with the checkpoint.

    Attributes:
        files: names, in the folder.
        tensors: the number of the module's parameters and buffers; parameters: the number of their values.
        tied: names of tensors that share their values with one named before.
        step: what runs: `predict_step` or `forward`; "" for tensors alone.
        inputs, outputs: in order; empty for tensors alone.
        unused: columns of a batch that the outputs do not depend on, so they are not inputs.
        left_out: parts of the step's result that are not tensors.
        transform: whether `train.transform` is part of the file; None if there is none.
        transform_fault: why it is not.
        agreements: one for each output.
        sample: rows that were compared; batch_sizes: of the batches.
        precision: the Trainer's.
        versions: package → version.
        pretrained: package and class of the model whose `save_pretrained` wrote the files; "" if none did.
    """

    files: list[str]
    tensors: int
    parameters: int
    tied: list[str] = []
    step: str = ""
    inputs: list[TensorFacts] = []
    outputs: list[TensorFacts] = []
    unused: list[str] = []
    left_out: list[str] = []
    transform: bool | None = None
    transform_fault: str = ""
    agreements: list[Agreement] = []
    sample: int = 0
    batch_sizes: list[int] = []
    precision: str = ""
    versions: dict[str, str] = {}
    pretrained: str = ""


EXPORT: Final = Child("training.export.worker", ExportRequest, Exported)


class ProfileRequest(Message):
    """Take some steps of a training in scratch, and time their parts.

    Attributes:
        train: the training's settings with the Lightning config inlined.
        project: folder of the user's code.
        dataset_path: local folder of the dataset, with the shards of those that it is mixed with.
        nodes, devices: ranks are processes of this machine, as many as the training has.
        warmup: steps before the first that is timed.
        steps: steps that are timed.
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
    folder: str
    batches_ready: bool = False
    compiled: bool = False

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.devices


class Operation(Record):
    """An operation: calls and seconds of its own, over all recorded steps."""

    name: str
    calls: int
    seconds: float


class StepProfile(Message, extra="ignore"):
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
        traced: steps of the trace, with those that exchange no gradients.
        busy_s: seconds of the recorded steps in operations that are not short; products_s: of these, in matrix
            products, convolutions, attention and recurrent layers.
        checkpoint_s: seconds that a checkpoint holds the steps; None: not measured.
        operations: the longest ones.
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
    traced: int = 0
    busy_s: float = 0.0
    products_s: float = 0.0
    checkpoint_s: float | None = None
    operations: list[Operation] = Field(default_factory=list)


PROFILE: Final = Child("training.profile", ProfileRequest, StepProfile)


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


MODULE_MEMORY: Final = Child("training.fit.memory", SizeRequest, ModuleSizes)


class ReapRequest(Message):
    """Look once for dead runs in a store, and have each resumed.

    Attributes:
        pool: its workers resume runs that cannot be executed again where they were.
        here: whether the caller may resume a run itself.
        skipped: runs that are not looked at.
    """

    store: StoreAddress
    pool: str
    here: bool
    skipped: list[str]


class RunBegun(Message):
    """The child is about to read the records of this run."""

    run_id: str


@dataclass(frozen=True)
class Reaped:
    """The outcome for a dead run.

    Attributes:
        what: `resumed`: somebody was asked; `here`: the caller must resume it; `ended`: it has a verdict now;
            `cancelled`: so it has, because it was cancelled; `left`: it could not be decided now; `lost`: its records
            cannot be read.
    """

    run_id: str
    store: str
    what: Literal["resumed", "here", "ended", "cancelled", "left", "lost"]
    sentence: str


class RunReaped(Message):
    """The outcome for a run."""

    reaped: Reaped


class StoreReaped(Message):
    """All runs were looked at."""


REAP: Final = Child("tasks.run.reap_worker", ReapRequest, StoreReaped)
