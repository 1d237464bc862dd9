"""Requests to, reports and answers of the children that read raw rows: those of validate, shard and `predict`.

The child of `predict` reports with `ShardProgress` and `Advanced`. The check for contamination compares rows of train
and test; its report is sealed. The chunk offsets of documents that the store keeps make all stages and later runs see
the same pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import Field

from data_contracts.handoffs import Dataset, Failure, HandOff, Quarantine, Record, Ref, SourceFile, StoredSuite
from data_contracts.messages import Message
from data_contracts.messages.children import Child, OfCheckpoint, Sealing, StoreAddress
from data_contracts.pipeline_spec import ContaminationSpec, CsvSpec, PiecesSpec, QuarantineSpec, ShardsSpec, SourceSpec
from data_contracts.pipeline_spec.base import CallableSpec
from data_contracts.pipeline_spec.data import MEMORY_SHARE
from data_contracts.records import Error, Profile, Sentence

# What a side's rows are used for. A row must not be used earlier than where it is scored.
TRAINED, HELD_OUT, SCORED = 0, 1, 2
# Near duplicates are noted as one bit for each side.
MOST_NEAR_SIDES = 64


class ChunkOffsets(HandOff):
    """Where one tokenizer cuts documents.

    Attributes:
        documents: the packed offsets of each document (`infra.sources.documents.pack`), by `offsets_name`.
    """

    documents: dict[str, str]


class SharedFolder(Record):
    """A folder that a cluster's machines share, and how many tasks they do at once."""

    folder: str
    at_once: int


class RawFiles(Message):
    """The raw files of a request.

    Attributes:
        sources: those of the spec, or as recorded; they decide which credentials the process gets.
        root: the spec's folder.
    """

    files: list[SourceFile]
    sources: list[SourceSpec]
    root: str


class ContractRequest(RawFiles):
    """Check raw files against a suite.

    Attributes:
        window: start and end in ISO, or None.
        sensitive: columns whose values no message may show.
        quarantine: how rows that break the contract are set aside.
        folder: an existing private folder, for the file of these rows.
        may_lack_sensitive: whether the files need not have every column that `sensitive` names.
        project: folder of the user's code, if the suite names classes of it.
        profile: whether the data is profiled. Of files that may lack sensitive columns no profile is kept: it would
            show the values of such a column under another name.
        statistics: an existing private folder, with the statistics of files from earlier checks of this suite in
            `known`; those of each other file are written to `new`.
        cluster: where other machines measure files, if there is `statistics`; the caller empties the folder.
        strict: refuse files whose columns or types differ.
    """

    suite: StoredSuite
    window: tuple[str, str] | None
    window_column: str | None
    fail_on: Literal["critical", "warning", "info"]
    sensitive: list[str]
    quarantine: QuarantineSpec | None = Field(default=None, exclude_if=lambda quarantine: quarantine is None)
    folder: str | None = Field(default=None, exclude_if=lambda folder: folder is None)
    may_lack_sensitive: bool = Field(default=False, exclude_if=lambda may: not may)
    profile: bool = Field(default=True, exclude_if=lambda profile: profile)
    statistics: str | None = Field(default=None, alias="parts", exclude_if=lambda folder: folder is None)
    project: str | None = Field(default=None, exclude_if=lambda project: project is None)
    cluster: SharedFolder | None = Field(default=None, exclude_if=lambda cluster: cluster is None)
    strict: bool = Field(default=False, exclude_if=lambda strict: not strict)


class ContractOutcome(Message):
    """What a check found, see `ContractReport`, and the profile, if it was asked for and the data has rows."""

    accepted: bool
    rows: int
    expectations: int
    failures: list[Failure]
    profile: Profile | None = Field(default=None, exclude_if=lambda profile: profile is None)
    quarantine: Quarantine | None = Field(default=None, exclude_if=lambda quarantine: quarantine is None)


class LookRequest(RawFiles):
    """Look at raw files for a command that knows nothing about them yet."""


class Drafted(Message):
    """A suite drafted from raw files; see `data_contracts.contract.inference.Draft`.

    Attributes:
        text_from: column that is text only because of a later value → the file and the row of that value.
        csv: how the CSV files are written, as their beginning shows it; None: with commas, points and in UTF-8.
    """

    rows: int = 0
    expectations: list[dict[str, object]] = []
    sensitive: dict[str, str] = {}
    unsure: list[tuple[str, str]] = []
    keys: list[str] = []
    ranges: dict[str, tuple[list[dict[str, object]], list[tuple[str, str]]]] = {}
    text_from: dict[str, tuple[str, int]] = {}
    csv: CsvSpec | None = Field(default=None, exclude_if=lambda csv: csv is None)


class LateRequest(RawFiles):
    """Count the rows whose time in a column is before `begins`, in microseconds since 1970."""

    column: str
    begins: int


class LateRows(Message):
    """How many rows there are, and how many of them are late."""

    rows: int
    late: int


class CutRequest(RawFiles):
    """Cut documents by a tokenizer of the user's; the answer is the `ChunkOffsets`.

    Attributes:
        files: documents that are cut alike.
        field: the spec's field that names the tokenizer, for errors.
        project: folder of the user's code.
    """

    pieces: PiecesSpec
    field: str
    project: str


class ShardRequest(RawFiles, Sealing):
    """Make and seal a dataset; the answer is the `Dataset`.

    Attributes:
        window: start and end in ISO, or None.
        project: folder of the user's code, or None.
        settings: added to the manifest's.
        one_split: put every row into a split of this name instead of splitting.
        required_splits: splits that must have rows; unused with `one_split`.
        sensitive: columns whose values no message may show.
        appended_to: a dataset whose shards are included, if its rows keep their types; `files` are those that it does
            not have.
        every: with `appended_to`, all files in order.
        cluster: where other machines do the work; the caller empties the folder.
        quarantine: the contract report whose rows are left out.
        strict: refuse files whose columns or types differ.
    """

    window: tuple[str, str] | None = None
    window_column: str | None = None
    shards: ShardsSpec
    project: str | None = None
    settings: dict[str, object]
    one_split: str | None = None
    required_splits: list[str]
    sensitive: list[str] = Field(default_factory=list)
    appended_to: Dataset | None = None
    cluster: SharedFolder | None = None
    quarantine: Ref | None = Field(default=None, exclude_if=lambda ref: ref is None)
    every: list[SourceFile] = Field(default_factory=list, exclude_if=lambda every: not every)
    strict: bool = Field(default=False, exclude_if=lambda strict: not strict)


class ShardProgress(Message):
    """How far the shard worker has got in a phase.

    Attributes:
        total: rows of the phase; None if unknown.
        share: of the phase that is done.
        seconds_left: of the phase; None if unknown.
    """

    phase: str
    rows: int
    total: int | None
    rows_per_s: int
    share: float
    seconds_left: float | None


class ClusterTaskOrder(Message):
    """A task lies in the shared folder and is to be sent to a cluster: its number and kind."""

    number: int = Field(alias="piece")
    work: str


class ClusterTaskRequest(Message):
    """Do one task of a cluster's.

    Attributes:
        folder: that all machines share.
        store: that the work opens, if any.
        sources: that the work opens.
        project: folder of the user's code in `folder`, if it runs, or decides the packages that the work runs with.
        field: of the spec, which names the cluster.
        memory_share: of the memory of the machine that does the task, as `data.memory_share`.
    """

    folder: str
    number: int = Field(alias="piece")
    store: StoreAddress | None = Field(default=None, exclude_if=lambda store: store is None)
    sources: list[SourceSpec]
    project: str | None = Field(default=None, exclude_if=lambda project: project is None)
    field: str = "shards.runner"
    memory_share: float = Field(default=MEMORY_SHARE, exclude_if=lambda share: share == MEMORY_SHARE)


class ClusterTaskDone(Message):
    """A task is done; its result lies beside it."""


class ClusterTaskOutcome(Message):
    """How a task ended: with the error as JSON, or None if its result lies beside it."""

    error: Error | None = None


class DigestRequest(RawFiles):
    """Hash raw files again in the places that a record names; `root` is in the DVC repository of those with a `rev`."""


class FileDigests(Message):
    """The files' digests, in order; None for a file that no longer exists."""

    digests: list[str | None]


CONTRACT: Final = Child("infra.contract.contract_worker", ContractRequest, ContractOutcome)
OWN_CONTRACT: Final = Child("training.user.contract_worker", ContractRequest, ContractOutcome)
DRAFT: Final = Child("infra.contract.draft_worker", LookRequest, Drafted)
LATE: Final = Child("infra.contract.late_worker", LateRequest, LateRows)
CUT: Final = Child("training.shard.cut_worker", CutRequest, ChunkOffsets)
SHARD: Final = Child("training.shard.worker", ShardRequest, Dataset)
DIGESTS: Final = Child("infra.sources.named_places", DigestRequest, FileDigests)
CLUSTER_TASK: Final = Child("infra.cluster_tasks", ClusterTaskRequest, ClusterTaskDone)


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


class RowPosition(Record):
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
    examples: list[tuple[RowPosition, RowPosition]] = []


class Conflicts(Record):
    """Rows with the same compared columns and different labels, in whichever splits.

    Attributes:
        groups: different combinations of compared columns that have more than one label.
        rows: all rows of these groups.
        examples: two rows of each of the first groups.
    """

    groups: int
    rows: int
    examples: list[tuple[RowPosition, RowPosition]] = []


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
    section: ContaminationSpec = Field(alias="asked")

    @property
    def fields(self) -> dict[str, str]:
        """The field of the spec that asks for each column that is read."""
        return asking_fields(self.section, self.columns, self.label)


def asking_fields(spec: ContaminationSpec, columns: Sequence[str], label: Sequence[str]) -> dict[str, str]:
    """The field of the spec that asks for each column; of columns that it does not name, the section."""
    section = "contract.contamination"
    fields = {spec.near.column: f"{section}.near"} if spec.near else {}
    fields |= dict.fromkeys(label, section if spec.label is None else f"{section}.label")
    return fields | dict.fromkeys(columns, section if spec.columns is None else f"{section}.columns")


CONTAMINATION: Final = Child("training.contamination.worker", ContaminationRequest, ContaminationReport)
