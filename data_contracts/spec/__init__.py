"""The pipeline spec: one YAML file that names the data, its contract, the shards, the training and the gates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from data_contracts.canonical import Name
from data_contracts.spec.base import CallableSpec, FieldError, Section, Shorthand
from data_contracts.spec.data import (
    ContractSpec,
    DaskRunner,
    Database,
    DataSpec,
    ShardsSpec,
    SourceSpec,
    SplitSpec,
    StorageOptions,
    Uri,
)
from data_contracts.spec.model import (
    OWN,
    BatchTransform,
    EvaluateSpec,
    GateSpec,
    InitSpec,
    LoaderSpec,
    MetricSpec,
    MixtureSpec,
    PromoteSpec,
    SetSpec,
    TrainSpec,
)
from data_contracts.spec.placed import VerifySpec

__all__ = [
    "OWN",
    "BatchTransform",
    "CallableSpec",
    "ContractSpec",
    "DaskRunner",
    "DataSpec",
    "EvaluateSpec",
    "GateSpec",
    "InitSpec",
    "LoaderSpec",
    "MetricSpec",
    "MixtureSpec",
    "PipelineSpec",
    "PromoteSpec",
    "RetrySpec",
    "SetSpec",
    "ShardsSpec",
    "SourceSpec",
    "SplitSpec",
    "StoreSpec",
    "TrainSpec",
    "VerifySpec",
]

VERSION = 1


class StoreSpec(Shorthand):
    """Where everything durable lies; a plain string is short for `uri`."""

    short_for: ClassVar[str] = "uri"

    uri: Uri = ".trainwright"
    """Folder (from the spec's folder) or `s3://bucket/prefix`; default `.trainwright` beside the spec."""
    storage_options: StorageOptions = Field(default_factory=dict)
    """For `s3://`: options of s3fs. Credentials are named (`env:NAME`, `profile:NAME`), never written here."""
    pointers: Database | None = None
    """For `s3://`: the database that decides pointers and names; default: what the store was made with."""

    @model_validator(mode="after")
    def _pointers_have_a_use(self) -> StoreSpec:
        if self.pointers is not None and not self.uri.startswith("s3://"):
            raise FieldError("pointers", f"is for an s3:// store; {self.uri} decides its names itself, leave it out")
        return self


class RetrySpec(Section):
    """How often each cause is tried again within one run."""

    preempted: int = Field(default=10, ge=0)
    """Nodes asked to leave (SIGTERM): again at once; default 10."""
    node_lost: int = Field(default=3, ge=0)
    """A node or rank that ended without an answer, or a link between them: with the nodes that are left; default 3."""
    hung: int = Field(default=3, ge=0)
    """Ranks that live but do not get on: after ending them; default 3."""
    admission: int = Field(default=0, ge=0)
    """Too few nodes had answered the roll-call at its deadline; default 0."""
    oom: int = Field(default=1, ge=0)
    """Out of memory: with half the micro-batch and twice the accumulation, needs our loader; default 1."""
    diverged: int = Field(default=3, ge=0)
    """A loss or weight that is no number, or a spike: from the last committed checkpoint, passing over the batches in
    question, needs our loader; at most so often in one training; default 3."""
    storage: int = Field(default=3, ge=0)
    """Store or source unavailable, with backoff; default 3."""


class PipelineSpec(Section):
    """A pipeline, from raw data to promotion."""

    version: Literal[1]
    """Version of this format."""
    name: Name
    """Namespace of its runs, artifacts and deployments."""
    store: StoreSpec = StoreSpec()
    """Where everything durable lies; never part of a key."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Cost tags, carried to Prefect's runs and into every manifest made; default none."""
    retry: RetrySpec = RetrySpec()
    """A budget for each cause."""
    data: DataSpec | Literal["external"]
    """The raw data, or `external` when the user's data module reads elsewhere."""
    contract: ContractSpec | None = None
    """What must hold of the data; left out only with `data: external`."""
    shards: ShardsSpec | None = None
    """How rows are stored; left out only with `data: external`."""
    train: TrainSpec
    """The training."""
    verify: VerifySpec = VerifySpec()
    """Where the checkpoint is verified."""
    evaluate: EvaluateSpec
    """How a checkpoint is scored."""
    promote: PromoteSpec = PromoteSpec()
    """When it replaces the champion."""

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
                raise FieldError(section, "is missing; only a pipeline with data: external goes without it")
        self._check_splits()
        for index, gate in enumerate(self.promote.gates):
            of_set, _, metric = gate.metric.rpartition("/")
            field = ("promote", "gates", index, "metric")
            if metric not in self.evaluate.metrics:
                raise FieldError(field, f"{metric!r} is no metric of evaluate; it has {_listed(self.evaluate.metrics)}")
            if of_set and of_set not in self.evaluate.sets:
                known = f"it has {_listed(self.evaluate.sets)}" if self.evaluate.sets else "it has none"
                raise FieldError(field, f"{of_set!r} is no set of evaluate.sets; {known}")
        return self

    def _check_splits(self) -> None:
        splits = None if self.shards is None else self.shards.split.names
        used: dict[tuple[str, ...], str] = {("evaluate", "split"): self.evaluate.split}
        for name, one in self.evaluate.sets.items():
            if one.source is not None and self.data == "external":
                sentence = "needs shards, and with data: external there are none; name a split instead"
                raise FieldError(("evaluate", "sets", name, "source"), sentence)
            if one.split is not None:
                used["evaluate", "sets", name, "split"] = one.split
        for field, split in used.items():
            if splits is not None and split not in splits:
                raise FieldError(field, f"{split!r} is no split of shards.split; it makes {_listed(splits)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
