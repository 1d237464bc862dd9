"""The hand-offs: small frozen records that pass between stages and are written as JSON.

They carry ids, URIs, digests and counts; never tensors or frames. URIs are relative to the store's root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import Field

from data_contracts.alias_moves import Approval, CanaryNote, CanaryTerms, Force, Incident
from data_contracts.canonical import StorePath
from data_contracts.records import AS_WRITTEN, DriftReport, GateResult, HandOff, Record, Sentence


class Ref(Record):
    """A reference to a sealed directory: where it is, what it is, and a seal that shows it is unchanged.

    Attributes:
        uri: path below the store's root, such as `datasets/<key>-0`.
        id: SHA-256 of its canonical content.
        seal: SHA-256 of its manifest up to the seal.
    """

    uri: StorePath
    id: str
    seal: str


class FileEntry(Record):
    """One file of a sealed directory: path below it, size in bytes, BLAKE3 digest in hexadecimal."""

    path: str
    bytes: int
    blake3: str


class SourceFile(Record):
    """One raw file, as looked up once at the start of a run.

    Attributes:
        uri: absolute path or `s3://` address; for a DVC-tracked file the path below its repository.
        bytes, blake3: its size, and the digest of its bytes, which is its identity.
        columns: values taken from its path: by the pattern (formats `files` and `text`), or from folders `key=value`.
        column_types: Arrow's names of the types that such folders' columns have over all files.
        source: index of its entry in `data.source`.
        rev: the Git commit its DVC revision resolved to, or None.
        chunk_offsets: where a tokenizer cuts it, see `infra.sources.documents`; only in requests for reading its rows.
        hidden_index: whether it names a column that pandas hides, which is not read: keys then differ from those of
            earlier versions, which read it.
    """

    uri: str
    bytes: int
    blake3: str
    format: Literal["csv", "tsv", "jsonl", "parquet", "files", "text"]
    columns: dict[str, str] = {}
    column_types: dict[str, str] = Field(default_factory=dict, exclude_if=lambda types: not types)
    source: int = 0
    rev: str | None = None
    chunk_offsets: str | None = Field(default=None, alias="cut", exclude_if=lambda offsets: offsets is None)
    hidden_index: bool = Field(default=False, exclude_if=lambda hidden: not hidden)


class RowPlace(Record):
    """Where a row is: its file, from the spec's folder, and its number in it from 0, before the window's filter."""

    file: str
    row: int


class Expectation(TypedDict):
    """One expectation of a suite. The `type` of one of the user's own is its `class_path`."""

    type: str
    class_path: NotRequired[str]
    kwargs: Mapping[str, Any]
    severity: str
    description: NotRequired[str]
    meta: NotRequired[object]


class Suite(TypedDict):
    """A suite as `load_suite` gives it: checked, and without the ids and versions that Great Expectations writes."""

    name: str
    expectations: list[Expectation]


StoredSuite = Annotated[Suite, AS_WRITTEN]


class Failure(Record):
    """One expectation that did not hold.

    Attributes:
        index: of the expectation in the suite; None in a report of an earlier version, whose `of` is 0.
        rows, of: number of rows that broke it, and of all that were checked; 0 if it is not about single rows.
        row_numbers: first few row numbers, counted from 0 over all source files in order.
        values: the values in those rows, or "•••" each where the column is sensitive.
        places: where those rows are; empty in a report of an earlier version.
        observed: the value that an expectation on the whole column saw, as text, "" when sensitive.
    """

    expectation: str
    column: str | None
    severity: Literal["critical", "warning", "info"]
    rows: int
    of: int = Field(default=0, exclude_if=lambda of: not of)
    row_numbers: list[int] = []
    values: list[Sentence] = []
    places: list[RowPlace] = Field(default_factory=list, exclude_if=lambda places: not places)
    observed: Sentence = ""
    sentence: Sentence
    index: int | None = Field(default=None, exclude_if=lambda index: index is None)


class Quarantine(Record):
    """How many rows a contract set aside, which expectations they broke, and the sentence if none could be."""

    rows: int
    broken: list[Failure] = []
    refused: str = ""


class ContractReport(HandOff):
    """The result of validate. `accepted` is False if a failure's severity is one that `contract.fail_on` names.

    Attributes:
        drift: the comparison that `contract.drift` asks for; `accepted` is also False if its `fail_on` says so.
        quarantine: rows that were set aside. They count as `rows`; what they broke is not among the `failures`.
    """

    ref: Ref | None = None
    key: str
    accepted: bool
    rows: int
    expectations: int
    failures: list[Failure] = []
    suite_digest: str
    drift: DriftReport | None = Field(default=None, exclude_if=lambda drift: drift is None)
    quarantine: Quarantine | None = Field(default=None, exclude_if=lambda quarantine: quarantine is None)

    @property
    def met(self) -> int:
        """How many expectations hold. One that broke does not hold, also if its severity lets it pass."""
        return self.expectations - len(self.failures)


class ShardFile(Record):
    """One shard of a dataset: its sealed directory, path in it, rows, bytes and digest."""

    uri: str
    path: str
    rows: int
    bytes: int
    blake3: str


class Dataset(HandOff):
    """A sealed set of shards.

    Attributes:
        splits: shards of each split in order; `train`, `val`, `test` or the names in the split column.
        columns: name → type, as text (`int64`, `string`, `tensor<uint8>[8,8]`, …).
        dropped_rows: rows left out at sharding, by reason (`gap`, `quarantined`, `contamination`).
        documents: of a split by position: `all`, and the `undivided`: too short, so in one split each. {} for others.
        same_as: the dataset to which new files without rows were added: it stands for this one. None for others.
    """

    ref: Ref
    key: str
    format: Literal["parquet", "tfrecord"]
    splits: dict[str, list[ShardFile]]
    columns: dict[str, str]
    dropped_rows: dict[str, int] = {}
    documents: dict[str, int] = Field(default={}, exclude_if=lambda documents: not documents)
    same_as: Ref | None = Field(default=None, exclude_if=lambda ref: ref is None)

    def rows(self, split: str) -> int:
        """Number of rows in a split (0 if there is no such split)."""
        return sum(shard.rows for shard in self.splits.get(split, []))


def passed_over(samples: Iterable[Sequence[int]]) -> str:
    """Samples (from, to) that a training did not see, as the end of a sentence; "" for none."""
    spans = ", ".join(f"{first:,} to {end:,}" for first, end in samples)
    return f", having diverged before and passed over samples {spans}" if spans else ""


class Checkpoint(HandOff):
    """A committed checkpoint of a training.

    Attributes:
        training: directory of the training below the store's root, `trainings/<key>-<n>`.
        step: optimizer steps done.
        metrics: the last value of each metric that the module had logged.
        dropped_rows: rows of the last, incomplete global batch of an epoch that training left out.
        skipped: samples (from, to) that it skipped, because a training with them diverged.
        state: `committed`, or `verified` once the verify stage passed.
    """

    ref: Ref
    key: str
    training: StorePath
    step: int
    epoch: int
    generation: int
    world_size: int
    metrics: dict[str, float] = {}
    dropped_rows: int = 0
    skipped: list[tuple[int, int]] = []
    state: Literal["committed", "verified"] = "committed"

    @property
    def passed_over(self) -> str:
        """The samples that it did not see, as the end of a sentence; "" if it saw all."""
        return passed_over(self.skipped)


class MetricValue(Record):
    """A metric over one dataset.

    Attributes:
        mode: whether larger (`max`) or smaller (`min`) is better.
        unit: the unit of one outcome: a `row`, a `batch`, or the whole `dataset` if the metric is not a mean over rows.
    """

    value: float
    mode: Literal["max", "min"]
    rows: int
    unit: Literal["row", "batch", "dataset"]


class Predictions(Record):
    """The table of a model's predictions of one set: a file beside the evaluation, and its columns.

    Attributes:
        missing: why there is no table; "" if there is.
    """

    file: str = ""
    columns: list[str] = []
    missing: str = ""


class Evaluation(HandOff):
    """One checkpoint scored on one run's sets. Metrics of a named set other than the first are `<set>/<metric>`.

    `outcomes` in the sealed directory has one line per row (or batch): see docs/evaluate.md.

    Attributes:
        predictions: tables by set, if `contract.predictions` asks for them.
        pairs: metric → file with the truth and the prediction of each row, if a gate needs them.
        shown: the same, for pages alone.
        sealed: metrics of sealed sets. They are not here but in a file beside it, which only gates read.
        undecided: with `predictions`: why a metric has no value and is missing; "" if all have one.
        undefined: metrics that are NaN on a set, which are missing in `metrics`, and why. Earlier versions had a number
            for some of them.
    """

    ref: Ref
    key: str
    checkpoint_id: str
    dataset_ids: dict[str, str]
    metrics: dict[str, MetricValue]
    predictions: dict[str, Predictions] = Field(default={}, exclude_if=lambda tables: not tables)
    pairs: dict[str, str] = Field(default={}, exclude_if=lambda files: not files)
    shown: dict[str, str] = Field(default={}, exclude_if=lambda files: not files)
    sealed: list[str] = Field(default=[], exclude_if=lambda names: not names)
    undecided: str = Field(default="", exclude_if=lambda reason: not reason)
    undefined: dict[str, Sentence] = Field(default={}, exclude_if=lambda reasons: not reasons)


class ModelVersion(HandOff):
    """A sealed version of a model; it points to its checkpoint and copies nothing."""

    ref: Ref
    name: str
    version: int
    checkpoint: Checkpoint
    evaluation: Ref


class Receipt(HandOff):
    """What promote decided and why.

    Attributes:
        decision: `promoted`, `unchanged` (the candidate already is the champion) or `not_promoted`; of the alias
            `canary`: `canary` (a version stands there) or `ended`.
        version, previous: the version that the alias names now, and the one that it named before, or None.
        quarantined_rows: raw rows that the contract kept out of the candidate's dataset.
        contamination: the report that says how far the candidate's rows are apart; incident: a rollback's note.
        approval: of the promotion; None if none was asked for.
        force: why a checkpoint was promoted that was on hold; None if it was not.
        required: what `promote.require` asked for; all was met.
        terms: by which a canary began; canary: in the receipts of its promotion and its end.
    """

    ref: Ref | None = None
    decision: Literal["promoted", "unchanged", "not_promoted", "canary", "ended"]
    model: str
    alias: str
    version: int | None
    previous: int | None
    gates: list[GateResult] = []
    candidate: Ref | None = None
    evaluation: Ref | None = None
    champion: Ref | None = None
    contamination: Ref | None = Field(default=None, exclude_if=lambda one: one is None)
    sentence: Sentence
    quarantined_rows: int = Field(default=0, exclude_if=lambda rows: rows == 0)
    incident: Incident | None = Field(default=None, exclude_if=lambda one: one is None)
    approval: Approval | None = Field(default=None, exclude_if=lambda one: one is None)
    force: Force | None = Field(default=None, exclude_if=lambda one: one is None)
    required: list[str] = Field(default=[], exclude_if=lambda names: not names)
    terms: CanaryTerms | None = Field(default=None, exclude_if=lambda one: one is None)
    canary: CanaryNote | None = Field(default=None, exclude_if=lambda one: one is None)
