"""Requests to, reports and answers of the children that read raw rows: those of validate and of shard."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from data_contracts.handoffs import Dataset, Failure, Quarantine, Record, Ref, SourceFile
from data_contracts.messages.children import Child, Sealing, StoreAddress
from data_contracts.messages.message import Message
from data_contracts.pipeline_spec import CsvSpec, PiecesSpec, QuarantineSpec, ShardsSpec, SourceSpec
from data_contracts.pipeline_spec.data import MEMORY_SHARE
from data_contracts.profile.record import Profile
from data_contracts.text_cuts import TextCuts


class SharedFolder(Record):
    """A folder that a cluster's machines share, and how many pieces of work they do at once."""

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
        parts: an existing private folder, with what is known of files from earlier checks of this suite in `known`; of
            each other file a part is written to `new`.
        cluster: where other machines measure files, if there is `parts`; the caller empties the folder.
        strict: refuse files whose columns or types differ.
    """

    suite: dict[str, Any]
    window: tuple[str, str] | None
    window_column: str | None
    fail_on: Literal["critical", "warning", "info"]
    sensitive: list[str]
    quarantine: QuarantineSpec | None = Field(default=None, exclude_if=lambda quarantine: quarantine is None)
    folder: str | None = Field(default=None, exclude_if=lambda folder: folder is None)
    may_lack_sensitive: bool = Field(default=False, exclude_if=lambda may: not may)
    profile: bool = Field(default=True, exclude_if=lambda profile: profile)
    parts: str | None = Field(default=None, exclude_if=lambda parts: parts is None)
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


class ColumnNames(Message):
    """The columns that the files begin with, in the order in which they first appear."""

    names: list[str]


class Drafted(Message):
    """A suite drafted from raw files; see `data_contracts.contract.inference.Draft`.

    Attributes:
        text_from: column that is text only because of a later value → the file and the row of that value.
        csv: how the CSV files are written, as their beginning shows it; None: with commas, points and in UTF-8.
    """

    rows: int = 0
    expectations: list[dict[str, Any]] = []
    sensitive: dict[str, str] = {}
    unsure: list[tuple[str, str]] = []
    keys: list[str] = []
    ranges: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {}
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
    """Cut documents by a tokenizer of the user's; the answer is the `TextCuts`.

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
    settings: dict[str, Any]
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


class PieceOrder(Message):
    """A piece of work lies in the shared folder and is to be sent to a cluster: its number and kind."""

    piece: int
    work: str


class PieceRequest(Message):
    """Do one piece of a cluster's work.

    Attributes:
        folder: that all machines share.
        store: that the work opens, if any.
        sources: that the work opens.
        project: folder of the user's code in `folder`, if it runs, or decides the packages that the work runs with.
        field: of the spec, which names the cluster.
        memory_share: of the memory of the machine that does the piece, as `data.memory_share`.
    """

    folder: str
    piece: int
    store: StoreAddress | None = Field(default=None, exclude_if=lambda store: store is None)
    sources: list[SourceSpec]
    project: str | None = Field(default=None, exclude_if=lambda project: project is None)
    field: str = "shards.runner"
    memory_share: float = Field(default=MEMORY_SHARE, exclude_if=lambda share: share == MEMORY_SHARE)


class PieceDone(Message):
    """A piece is done; its result lies beside it."""


class PieceOutcome(Message):
    """How a piece ended: with the error as JSON, or None if its result lies beside it."""

    error: dict[str, Any] | None = None


class DigestRequest(RawFiles):
    """Hash raw files again in the places that a record names; `root` is in the DVC repository of those with a `rev`."""


class FileDigests(Message):
    """The files' digests, in order; None for a file that no longer exists."""

    digests: list[str | None]


CONTRACT: Final = Child("infra.contract.contract_worker", ContractRequest, ContractOutcome)
OWN_CONTRACT: Final = Child("training.user.contract_worker", ContractRequest, ContractOutcome)
DRAFT: Final = Child("infra.contract.draft_worker", LookRequest, Drafted)
COLUMNS: Final = Child("infra.sources.peek", LookRequest, ColumnNames)
LATE: Final = Child("infra.contract.late_worker", LateRequest, LateRows)
CUT: Final = Child("training.shard.cut_worker", CutRequest, TextCuts)
SHARD: Final = Child("training.shard.worker", ShardRequest, Dataset)
DIGESTS: Final = Child("infra.sources.named_places", DigestRequest, FileDigests)
PIECE: Final = Child("infra.piece_worker", PieceRequest, PieceDone)
