"""The request to the child that exports a checkpoint, and its answer."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from data_contracts.handoffs import Dataset, Record, Ref
from data_contracts.messages.children import Child, OfCheckpoint
from data_contracts.messages.message import Message

Format = Literal["safetensors", "huggingface", "torch", "onnx"]


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
