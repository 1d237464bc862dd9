"""The pipeline spec: one YAML file that names the data, its contract, the shards, the training and the gates."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from data_contracts.canonical import Name
from data_contracts.pipeline_spec.base import (
    CallableSpec,
    DaskRunner,
    FieldError,
    Section,
    Shorthand,
    VerifySpec,
    is_none,
)
from data_contracts.pipeline_spec.contract import ContaminationSpec, ContractSpec, NearSpec, QuarantineSpec, SuiteSpec
from data_contracts.pipeline_spec.data import (
    CsvSpec,
    Database,
    DataSpec,
    PiecesSpec,
    ShardsSpec,
    SourceSpec,
    SplitSpec,
    StorageOptions,
    TokenizerSpec,
    Uri,
    share_csv,
)
from data_contracts.pipeline_spec.evaluate import EvaluateSpec, MetricSpec, SetSpec, SliceSpec
from data_contracts.pipeline_spec.operations import MirrorsSpec, NotifyRule, ScheduleSpec, check_mirrors
from data_contracts.pipeline_spec.promote import CanarySpec, GateSpec, PromoteSpec, check_gates, listed
from data_contracts.pipeline_spec.search import SearchSpec
from data_contracts.pipeline_spec.train import (
    OWN,
    BatchTransform,
    CodeSpec,
    EnvironmentSpec,
    InitSpec,
    LoaderSpec,
    MixtureSpec,
    TrainSpec,
)

__all__ = [
    "OWN",
    "BatchTransform",
    "CallableSpec",
    "CanarySpec",
    "CodeSpec",
    "ContaminationSpec",
    "ContractSpec",
    "CsvSpec",
    "DaskRunner",
    "DataSpec",
    "EnvironmentSpec",
    "EvaluateSpec",
    "GateSpec",
    "InitSpec",
    "LoaderSpec",
    "MetricSpec",
    "MirrorsSpec",
    "MixtureSpec",
    "NearSpec",
    "NotifyRule",
    "PiecesSpec",
    "PipelineSpec",
    "PromoteSpec",
    "QuarantineSpec",
    "RetrySpec",
    "ScheduleSpec",
    "SearchSpec",
    "SetSpec",
    "ShardsSpec",
    "SliceSpec",
    "SourceSpec",
    "SplitSpec",
    "StoreSpec",
    "SuiteSpec",
    "TokenizerSpec",
    "TrainSpec",
    "VerifySpec",
]

VERSION = 1
# The default of `retry.crashed`, which is left out of a spec's JSON.
CRASHED = 3
# The default of `retry.server_wait_s`, likewise.
SERVER_WAIT_S = 900.0


class StoreSpec(Shorthand):
    """Where all durable results are stored; a plain string is short for `uri`."""

    short_for: ClassVar[str] = "uri"

    uri: Uri = ".trainwright"
    """Folder (relative to the spec's folder) or `s3://bucket/prefix`; default `.trainwright` beside the spec."""
    storage_options: StorageOptions = Field(default_factory=dict)
    """For `s3://`: options of s3fs. Credentials are named (`env:NAME`, `profile:NAME`), never written here."""
    pointers: Database | None = None
    """For `s3://`: the database that decides pointers and names; default: the one that the store was made with."""

    @model_validator(mode="after")
    def _pointers_have_a_use(self) -> StoreSpec:
        if self.pointers is not None and not self.uri.startswith("s3://"):
            raise FieldError("pointers", f"is for an s3:// store; {self.uri} decides its names itself, leave it out")
        return self


class RetrySpec(Section):
    """How often a failure of each cause is retried in one training; reset after a run that failed."""

    preempted: int = Field(default=10, ge=0)
    """Nodes were asked to stop (SIGTERM): retried at once; default 10."""
    node_lost: int = Field(default=3, ge=0)
    """A node or rank ended without an answer, or a link was cut: retried with the nodes that are left; default 3."""
    hung: int = Field(default=3, ge=0)
    """Ranks made no progress: retried after they are ended; default 3."""
    admission: int = Field(default=0, ge=0)
    """Too few nodes answered the roll-call before its deadline; default 0."""
    oom: int = Field(default=1, ge=0)
    """Out of memory: retried with half the micro-batch and twice the accumulation. Needs Trainwright's loader; default
    1."""
    diverged: int = Field(default=3, ge=0)
    """A loss or weight was not finite, or the loss spiked: retried from the last committed checkpoint without the
    suspected batches. Needs Trainwright's loader. Never reset within a training; default 3."""
    storage: int = Field(default=3, ge=0)
    """The store or a source was unavailable: retried with backoff; default 3."""
    crashed: int = Field(default=CRASHED, ge=0, exclude_if=lambda budget: budget == CRASHED)
    """The process that carries the run out died without a report, or it ended because the Prefect server was away:
    `trainwright reap` resumes the run; reset when the run ends with another report. 0: it is never resumed by itself;
    default 3."""
    server_wait_s: float = Field(default=SERVER_WAIT_S, gt=0, exclude_if=lambda wait_s: wait_s == SERVER_WAIT_S)
    """How long a run waits between its stages, and at its end, for a Prefect server that does not answer; then it ends
    with the cause `storage`. Seconds; default 900."""


class PipelineSpec(Section):
    """A pipeline, from raw data to promotion."""

    # A section that earlier versions lack is left out if it has its default value, so that a spec's digest and keys
    # stay.

    version: Literal[1]
    """Version of this format."""
    name: Name
    """Name of the pipeline; its runs, artifacts, deployments and model are named after it."""
    store: StoreSpec = StoreSpec()
    """Where all durable results are stored; never part of a reuse key."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Cost tags, set on every run in Prefect and written into every manifest; default none. A tag is refused if a word
    of its name says that it is a secret (`token`, `password`, `auth`, `api_key`; not `tokenizer`), or if an address in
    it holds a credential. `env:NAME` is permitted, and stays as written: tags are not looked up."""
    retry: RetrySpec = RetrySpec()
    """How many retries each cause of failure has."""
    code: CodeSpec = Field(default=CodeSpec(), exclude_if=lambda code: code == CodeSpec())
    """Further files of the project to pack into the code bundle."""
    environment: EnvironmentSpec | None = Field(default=None, exclude_if=is_none)
    """The packages that your code runs with, apart from Trainwright's; default: it runs with Trainwright's own."""
    data: DataSpec | Literal["external"]
    """The raw data, or `external` if your own data module reads other data."""
    contract: ContractSpec | None = None
    """What must be true of the data. Required, except with `data: external`."""
    shards: ShardsSpec | None = None
    """How rows are split and stored. Required, except with `data: external`."""
    train: TrainSpec
    """How the model is trained."""
    verify: VerifySpec = VerifySpec()
    """How a checkpoint is verified: where, and on how many ranks."""
    evaluate: EvaluateSpec
    """How a checkpoint is scored."""
    promote: PromoteSpec = PromoteSpec()
    """When a checkpoint becomes the champion."""
    mirrors: MirrorsSpec = Field(default=MirrorsSpec(), exclude_if=lambda mirrors: mirrors == MirrorsSpec())
    """Systems outside that are told of each run after its verdict; never part of a reuse key; default: none."""
    schedule: ScheduleSpec = Field(default=ScheduleSpec(), exclude_if=lambda schedule: schedule == ScheduleSpec())
    """How runs that a schedule or an event starts go together; never part of a reuse key."""
    notify: list[NotifyRule] = Field(default_factory=list, exclude_if=lambda rules: not rules)
    """Whom the Prefect server tells of which causes, once `trainwright deploy` has set it up; default: nobody."""

    until: Literal["train"] | None = Field(default=None, exclude_if=is_none)
    """The last stage of a run, such as of a search's trial, which then ends with the verdict `trained`; default: all
    stages."""
    search: SearchSpec | None = Field(default=None, exclude_if=is_none)
    """Which values of which fields `trainwright search` tries; a run has no use for it. Default: none."""

    @property
    def model_name(self) -> str:
        """Name of the model in the registry."""
        return self.promote.model or self.name

    @model_validator(mode="after")
    def _consistent(self) -> PipelineSpec:
        for section in ("contract", "shards"):
            if self.data == "external" and getattr(self, section) is not None:
                raise FieldError(section, "has no effect with data: external; leave it out")
            if self.data != "external" and getattr(self, section) is None:
                raise FieldError(section, "is missing; only a pipeline with data: external may leave it out")
        if self.contract is not None and self.contract.quarantine is not None and self.shards and self.shards.append:
            sentence = "and shards.append exclude each other: old shards may hold a row that breaks the contract beside"
            raise FieldError(("contract", "quarantine"), f"{sentence} new rows; leave one out")
        if self.contract is not None and self.contract.features and self.shards and self.shards.format != "parquet":
            raise FieldError(("contract", "features"), "needs shards.format: parquet; use it, or leave features out")
        self._share_csv()
        self._check_arrival()
        self._check_splits()
        check_gates(self.promote.gates, self.evaluate)
        check_mirrors(self.mirrors, self.promote.alias)
        if self.search is not None and self.train.select is None:
            raise FieldError("search", "needs train.select, which says what the best trial is best in; add it")
        if self.data == "external" and self.schedule.sensor is not None:
            raise FieldError(("schedule", "sensor"), "needs data.source, and data is external; leave it out")
        for name in ("unit", "slices"):
            if self.data == "external" and getattr(self.evaluate, name):
                sentence = "needs the columns of a dataset, and with data: external there are none; leave it out"
                raise FieldError(("evaluate", name), sentence)
        return self

    def _share_csv(self) -> None:
        """Give `data.csv` to each source, so that whoever reads a source needs nothing else of the spec."""
        if isinstance(self.data, DataSpec) and self.data.csv is not None:
            groups = [self.data.source, *(one.source for one in self.evaluate.sets.values() if one.source)]
            shared = [share_csv(sources, self.data.csv) for sources in groups]
            if not any(shared):
                raise FieldError(
                    ("data", "csv"), "has no effect: no source is a CSV file without a csv of its own; leave it out"
                )

    def _check_arrival(self) -> None:
        if self.contract is None or self.contract.arrival is None or isinstance(self.data, str) or self.data.window:
            return
        for name in self.contract.arrival.of_windows:
            raise FieldError(("contract", "arrival", name), "needs data.window; give it, or leave this setting out")

    def _check_splits(self) -> None:
        splits = None if self.shards is None else self.shards.split.names
        sources = self.data.source if isinstance(self.data, DataSpec) else []
        if self.shards and self.shards.split.by and not any(one.format == "text" for one in sources):
            sentence = "needs documents, but no data.source has format: text; give it one, or split by key or time"
            raise FieldError(("shards", "split", "by"), sentence)
        used: dict[tuple[str, ...], str] = {("evaluate", "split"): self.evaluate.split}
        for name, one in self.evaluate.sets.items():
            if one.source is not None and self.data == "external":
                sentence = "needs shards, and with data: external there are none; name a split instead"
                raise FieldError(("evaluate", "sets", name, "source"), sentence)
            if one.split is not None:
                used["evaluate", "sets", name, "split"] = one.split
        for field, split in used.items():
            if splits is not None and split not in splits:
                raise FieldError(field, f"{split!r} is not a split of shards.split; it makes {listed(splits)}")
        sealed = {name: one.split for name, one in self.evaluate.sets.items() if one.sealed and one.split}
        for name, split in sealed.items():
            if any(other == split and field[2:3] != (name,) for field, other in used.items()):
                sentence = f"its rows are scored under another name, too ({split!r}); give it a split of its own"
                raise FieldError(("evaluate", "sets", name, "sealed"), sentence)
        self._check_sealed_sources(sources)

    def _check_sealed_sources(self, data: Sequence[SourceSpec]) -> None:
        """FieldError if the files of a sealed set are also read where their scores or rows are shown."""
        sets = self.evaluate.sets
        for name, one in sets.items():
            others = [*data, *(source for other in sets if other != name for source in sets[other].source or [])]
            uris = {os.path.normpath(source.uri) for source in others}
            for source in (one.source or []) if one.sealed else []:
                if os.path.normpath(source.uri) in uris:
                    sentence = f"its rows are also read under another name ({source.uri}); give it files of its own"
                    raise FieldError(("evaluate", "sets", name, "sealed"), sentence)
