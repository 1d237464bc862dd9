"""The inputs, looked up once at the start of a run and never again (`runs/<run_id>/resolved.json`)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from data_contracts.handoffs import Dataset, HandOff, Record, Ref, SourceFile
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.run_report import Trigger


class Price(Record):
    """A machine's price in the catalogue at the start of the run."""

    machine: str
    usd_per_hour: float
    price_date: str


class DriftReference(Record):
    """The earlier data that `contract.drift` names.

    Attributes:
        name: for a sentence.
        contract: the contract report beside which its profile is sealed.
        path: of a profile's file, from the spec's folder, and the digest of its content.
        note: why there is nothing to compare with; "" if there is.
    """

    name: str
    contract: Ref | None = None
    path: str | None = None
    digest: str | None = None
    note: str = ""


class Resolved(HandOff):
    """The inputs of a run.

    Attributes:
        spec: the spec after overrides, as JSON.
        root: the spec's folder, to which relative paths refer.
        window: start and end in ISO, or None.
        files: the raw files, in reading order; `sets` has those of the named evaluation sets.
        suite: the contract's suite, loaded; `set_suites` has those that evaluation sets name.
        features, predictions: the suites of `contract.features` and `contract.predictions`, loaded.
        lightning: the LightningCLI config, loaded.
        code: the sealed bundle of the user's project; keys contain its `code_digest`.
        champion: the alias's model version at the start.
        mixture: the other datasets that `train.loader.mixture` names.
        init_from: the checkpoint, or the imported weights, that `train.init_from` names.
        drift: the earlier data that `contract.drift` names.
        fresh: whether the run was asked for a training of its own (`--new`).
    """

    run_id: str
    spec: dict[str, Any]
    spec_path: str
    root: str
    store: str
    window: tuple[str, str] | None
    files: list[SourceFile]
    sets: dict[str, list[SourceFile]]
    suite: dict[str, Any] | None
    lightning: dict[str, Any]
    code: Ref
    code_digest: str
    champion: Ref | None
    price: Price
    trigger: Trigger
    actor: str
    commit: str | None
    dirty: bool
    lock_digest: str
    started: str
    fresh: bool = False
    mixture: dict[str, Dataset] = Field(default_factory=dict)
    init_from: Ref | None = None
    drift: DriftReference | None = Field(default=None, exclude_if=lambda drift: drift is None)
    set_suites: dict[str, dict[str, Any]] = Field(default_factory=dict, exclude_if=lambda suites: not suites)
    features: dict[str, Any] | None = Field(default=None, exclude_if=lambda suite: suite is None)
    predictions: dict[str, Any] | None = Field(default=None, exclude_if=lambda suite: suite is None)

    def pipeline(self) -> PipelineSpec:
        """The spec as a typed object."""
        return PipelineSpec.model_validate(self.spec)
