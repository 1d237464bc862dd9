"""Whether train and test share rows: the request to compare rows, and the sealed report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from data_contracts.handoffs import Dataset, HandOff, Record, Ref
from data_contracts.messages.children import Child, Sealing
from data_contracts.pipeline_spec import ContaminationSpec
from data_contracts.records import Sentence

# What a side's rows are used for. A row must not be used earlier than where it is scored.
TRAINED, HELD_OUT, SCORED = 0, 1, 2
# Near duplicates are noted as one bit for each side.
MOST_NEAR_SIDES = 64


class Side(Record):
    """Rows that are used for one purpose: a split of the run's dataset, of a mixture's, or of an evaluation set's.

    Attributes:
        name: of the split, or of the dataset among those that are mixed, or of the evaluation set.
        use: TRAINED on, HELD_OUT for other decisions, or SCORED.
        own: whether it is a split of the run's dataset, from which rows can be dropped.
    """

    name: str
    dataset: Dataset
    split: str
    use: int
    own: bool


class Place(Record):
    """A row: the shard below the store's root, and the row's number in it, from 0."""

    shard: str
    row: int


class Overlap(Record):
    """Rows of two sides that are the same, or almost.

    Attributes:
        earlier, later: names of the sides; the rows of `later` must not be in `earlier`.
        earlier_rows, later_rows: rows of each side with a copy in the other.
        conflicting: rows of `later` for which a copy has another label; 0 for near duplicates.
        examples: the first rows of `later`, each with a copy in `earlier`.
    """

    kind: Literal["exact", "near"]
    earlier: str
    later: str
    earlier_rows: int
    later_rows: int
    conflicting: int = 0
    examples: list[tuple[Place, Place]] = []


class Conflicts(Record):
    """Rows with the same compared columns and different labels, in whichever splits.

    Attributes:
        groups: different combinations of compared columns that have more than one label.
        rows: all rows of these groups.
        examples: two rows of each of the first groups.
    """

    groups: int
    rows: int
    examples: list[tuple[Place, Place]] = []


class ContaminationReport(HandOff):
    """How far train and test are apart.

    Attributes:
        accepted: False if what was found rejects the dataset.
        columns: compared columns; label: those with the truth, [] if there is none.
        rows: rows that were compared, by side.
        dropped: rows left out of the splits of the run's dataset.
        dataset: the dataset without these rows; None if no row was left out.
        sentence: what was found; "" for nothing.
    """

    ref: Ref | None = None
    key: str
    accepted: bool
    columns: list[str]
    label: list[str]
    rows: dict[str, int]
    overlaps: list[Overlap] = []
    conflicts: Conflicts | None = None
    dropped: dict[str, int] = {}
    dataset: Ref | None = None
    sentence: Sentence = ""


class ContaminationRequest(Sealing):
    """Compare sealed rows, and seal the report; the answer is the report.

    Attributes:
        dataset_uri: the directory of the dataset without the copies, if rows are dropped.
        columns: that are compared; every side has them.
        label: columns with the truth, in every side.
        dataset: the run's, of which the sides that are `own` are splits.
        provenance: of the report and of the dataset.
    """

    dataset_uri: str
    dataset: Dataset
    sides: list[Side]
    columns: list[str]
    label: list[str]
    asked: ContaminationSpec

    @property
    def fields(self) -> dict[str, str]:
        """The field of the spec that asks for each column that is read."""
        return asking_fields(self.asked, self.columns, self.label)


def asking_fields(asked: ContaminationSpec, columns: Sequence[str], label: Sequence[str]) -> dict[str, str]:
    """The field of the spec that asks for each column; of columns that it does not name, the section."""
    section = "contract.contamination"
    found = {asked.near.column: f"{section}.near"} if asked.near else {}
    found |= dict.fromkeys(label, section if asked.label is None else f"{section}.label")
    return found | dict.fromkeys(columns, section if asked.columns is None else f"{section}.columns")


CONTAMINATION: Final = Child("training.contamination.worker", ContaminationRequest, ContaminationReport)
