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
    DataSpec,
    ShardsSpec,
    SourceSpec,
    SplitSpec,
    StorageOptions,
    Uri,
)
from data_contracts.spec.model import (
    BatchTransform,
    EvaluateSpec,
    GateSpec,
    LoaderSpec,
    MetricSpec,
    MixtureSpec,
    PromoteSpec,
    SetSpec,
    TrainSpec,
)

__all__ = [
    "BatchTransform",
    "CallableSpec",
    "ContractSpec",
    "DaskRunner",
    "DataSpec",
    "EvaluateSpec",
    "GateSpec",
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
]

VERSION = 1


class StoreSpec(Shorthand):
    """Where everything durable lies; a plain string is short for `uri`."""

    short_for: ClassVar[str] = "uri"

    uri: Uri = ".trainwright"
    """Folder (from the spec's folder) or `s3://bucket/prefix`; default `.trainwright` beside the spec."""
    storage_options: StorageOptions = Field(default_factory=dict)
    """For `s3://`: options of s3fs. Credentials are named (`env:NAME`, `profile:NAME`), never written here."""


class RetrySpec(Section):
    """How often each cause is tried again within one run."""

    preempted: int = Field(default=10, ge=0)
    """Nodes asked to leave (SIGTERM): again at once; default 10."""
    node_lost: int = Field(default=3, ge=0)
    """A node or rank that ended without an answer; default 3."""
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
