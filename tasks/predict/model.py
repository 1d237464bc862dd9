"""What a model version needs of raw rows: how its own were prepared, their types, their contract; all sealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Dataset, ModelVersion, Ref
from data_contracts.pipeline_spec import SourceSpec, TrainSpec
from data_contracts.pipeline_spec.base import CallableSpec
from data_contracts.resolved import Resolved
from infra.contract.parts import read_profile
from infra.records.handoffs import read_handoff
from infra.store import Manifest, Store, layout
from tasks.run.resolve import find_version
from tasks.run.run import Run
from tasks.stages.shard import dataset_key
from tasks.stages.trainings import InStore, TrainedWith, trained_with


@dataclass(frozen=True)
class Model:
    """A version, and what it was made with.

    Attributes:
        evaluate: settings of its evaluation.
        transform: `shards.transform`; rows_code: the bundle that has it.
        raw_types: columns of the raw rows and their Arrow types; empty if no profile of them was kept.
        sensitive: columns whose values no message may show.
        sources: that the raw rows came from.
        contract: the report that accepted them; None if there is none.
    """

    version: ModelVersion
    trained: TrainedWith
    dataset: Dataset
    evaluate: dict[str, Any]
    transform: CallableSpec | None
    rows_code: Ref
    raw_types: dict[str, str]
    sensitive: list[str]
    sources: list[SourceSpec]
    contract: Manifest | None

    @property
    def types_to_read(self) -> dict[str, str]:
        """The part of `raw_types` that a prediction needs: without a transform, the columns of a batch.

        So a column that no batch holds, such as an id, may have another type than in training.
        """
        columns = TrainSpec.columns_in(self.trained.train["batch"])
        if self.transform is not None or columns is None:
            return self.raw_types
        return {name: kind for name, kind in self.raw_types.items() if name in columns}


def open_model(store: Store, name: str) -> Model:
    """The version that `name`, `name@alias` or `name@3` names; an alias is looked up once.

    Raises:
        UsageError: there is none, or its batches come from a data module of the user's.
        CorruptError: something that it was made with is gone or was changed.
    """
    version, _ = find_version(store, name)
    trained = trained_with(InStore(store), version.checkpoint)
    called = f"{version.name} version {version.version}"
    if trained.dataset is None or trained.train["lightning"].get("data"):
        raise UsageError(
            f"{called} gets its batches from a data module of yours, which reads its own data, so predict cannot give "
            "it rows.",
            remedy="Use its own predict_dataloader, or train it on sealed shards (train.batch).",
        )
    try:
        dataset = read_handoff(store, trained.dataset, Dataset)
        evaluate = store.manifest(version.evaluation).settings["evaluate"]
        made = store.manifest(trained.dataset)
        contract = _contract(store, made)
    except FileNotFoundError as error:
        raise CorruptError(f"Part of what {called} was made with is missing: {error}.") from error
    preparation = _preparation(store, version, dataset, made)
    profile = None if contract is None else read_profile(store, contract.ref)
    transform = preparation["transform"]
    return Model(
        version=version,
        trained=trained,
        dataset=dataset,
        evaluate=evaluate,
        transform=None if transform is None else CallableSpec.model_validate(transform),
        rows_code=Ref.model_validate(made.provenance["code"]["ref"]),
        raw_types={} if profile is None else {one.name: one.type for one in profile.columns},
        sensitive=list(preparation["sensitive"]),
        sources=[SourceSpec.model_validate(one) for one in made.provenance.get("raw_sources", [])],
        contract=contract,
    )


def _contract(store: Store, dataset: Manifest) -> Manifest | None:
    ref = dataset.parent_in("contracts")
    return None if ref is None else store.manifest(ref)


def _preparation(store: Store, version: ModelVersion, dataset: Dataset, made: Manifest) -> Mapping[str, Any]:
    """The transform and the sensitive columns; for a dataset of an earlier version, from the run that promoted it."""
    if "preparation" in made.provenance:
        return dict(made.provenance["preparation"])
    run_id = store.manifest(version.ref).provenance.get("run_id", "")
    resolved = store.find_as(layout.resolved(run_id), Resolved.from_json) if run_id else None
    run = None if resolved is None else Run(resolved, store)
    # The key is the digest of all that decides the rows: only the run's true settings give it.
    if run is None or run.external or run.spec.shards is None or dataset_key(run) != dataset.key:
        raise UsageError(
            f"{dataset.ref.uri} does not say how its rows were prepared, and the run that made it is gone.",
            remedy="Run the pipeline again: datasets record it now.",
        )
    data, transform = run.spec.data, run.spec.shards.transform
    assert not isinstance(data, str)
    return {
        "transform": None if transform is None else transform.model_dump(mode="json"),
        "sensitive": data.sensitive,
    }
