"""The request to the child of `predict`, and its answer; it reports with `ShardProgress` and `Advanced`."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from data_contracts.handoffs import Dataset, Ref
from data_contracts.messages.children import Child, OfCheckpoint
from data_contracts.messages.message import Message
from data_contracts.messages.raw_data import RawFiles
from data_contracts.pipeline_spec.base import CallableSpec


class PredictRequest(OfCheckpoint, RawFiles):
    """Predict for each row of raw files, and write one file.

    Attributes:
        code: that trained the checkpoint.
        evaluate: settings of its evaluation: they say which part of a batch is the label.
        transform: `shards.transform`; rows_code: the bundle that has it.
        dataset_columns: the columns of the shards that the checkpoint was trained on, and their types.
        raw_types: columns of the raw rows that were sharded, and their Arrow types, where they are known.
        output: absolute path of the file to write.
        keep: columns of the raw rows that are copied to it; label: columns that the rows may lack.
        identity: name → digest of what decides the file; work that began with others is not continued.
    """

    evaluate: dict[str, Any]
    transform: CallableSpec | None
    rows_code: Ref
    dataset_columns: dict[str, str]
    raw_types: dict[str, str]
    output: str
    batch_size: int = Field(ge=1)
    keep: list[str]
    label: list[str]
    overwrite: bool
    identity: dict[str, str]

    @property
    def needs(self) -> list[Ref | Dataset]:
        """The code that trained the checkpoint, and that of the transform."""
        return [self.code, self.rows_code]


class Predicted(Message):
    """What was written.

    Attributes:
        columns: of the file.
        resumed_rows: rows that an earlier, interrupted attempt had predicted.
        begun_anew: what differs from an interrupted attempt that was therefore not continued; "" if there was none.
        left_out: entries of the predictions without one value for each row.
        no_label: columns of the label, if the rows lack them.
        bytes: of the file.
    """

    rows: int
    columns: list[str]
    resumed_rows: int = 0
    begun_anew: str = ""
    left_out: list[str] = []
    no_label: list[str] = []
    bytes: int


PREDICT: Final = Child("training.predict.worker", PredictRequest, Predicted)
