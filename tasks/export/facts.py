"""The facts about a model version in the store, from which its card and its record are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from data_contracts.errors import CorruptError
from data_contracts.handoffs import ContractReport, Dataset, Evaluation, ModelVersion, Receipt, Ref
from data_contracts.run_report import RunReport
from infra.models import registry
from infra.records.handoffs import read_handoff
from infra.store import Store, layout
from tasks.export.module_arguments import without_private
from tasks.run.report import latest_report
from tasks.run.resolve import find_version
from tasks.stages.promote import split_with_rows
from tasks.stages.trainings import InStore, TrainedWith, trained_with


@dataclass(frozen=True)
class ModelFacts:
    """A model version and what it was made of.

    Attributes:
        alias: by which it was named; None if by its number.
        metrics_of: the section `evaluate` as it was sealed with the evaluation.
        dataset, contract: None if the data is external, or was not checked.
        receipt: of its promotion; None if it has none that can be found.
        report: of the run that made it; None after a stage command.
        code: commit and dirty flag of the code that trained it.
        license_id: the licence that a person states; "" if it is not known.
        withholds: whether texts that may quote rows stay on this machine; also if that is not known.
    """

    store: Store
    version: ModelVersion
    alias: str | None
    trained: TrainedWith
    evaluation: Evaluation
    metrics_of: dict[str, Any]
    dataset: Dataset | None
    contract: ContractReport | None
    receipt: Receipt | None
    report: RunReport | None
    code: dict[str, Any] = field(default_factory=dict)
    trained_at: str = ""
    withholds: bool = True
    license_id: str = ""

    @property
    def title(self) -> str:
        """The model and its version in words."""
        return f"{self.version.name}, version {self.version.version}"

    @property
    def split(self) -> str:
        """The split whose rows an export is compared on: the one that was scored, else one that has rows."""
        return split_with_rows(self.dataset, str(self.metrics_of.get("split") or "test"))

    @property
    def targets(self) -> list[str]:
        """The entries of a batch that metrics take for the truth."""
        metrics = self.metrics_of.get("metrics", {})
        return sorted({one["target"] for one in metrics.values() if one.get("target")})

    @property
    def model_class(self) -> str:
        """The dotted path of the module's class."""
        model = self.trained.train["lightning"].get("model") or {}
        return str(model.get("class_path", ""))

    @property
    def arguments(self) -> tuple[dict[str, Any], list[str]]:
        """The module's arguments without what stays on this machine, and the names of those that were withheld."""
        model = self.trained.train["lightning"].get("model") or {}
        return without_private(model.get("init_args") or {})


def model_facts(store: Store, name: str) -> ModelFacts:
    """The facts about the version that `model`, `model@alias` or `model@3` names.

    Raises:
        UsageError: there is no such version. CorruptError: a part of it is changed or gone.
    """
    version, alias = find_version(store, name)
    trained = trained_with(InStore(store), version.checkpoint)
    checkpoint = store.manifest(version.checkpoint.ref)
    evaluation = read_handoff(store, version.evaluation, Evaluation)
    if evaluation.checkpoint_id != version.checkpoint.ref.id:
        raise CorruptError(f"{version.evaluation.uri} is an evaluation of another checkpoint than {version.ref.uri}.")
    made = store.manifest(version.ref).provenance
    dataset = None if trained.dataset is None else read_handoff(store, trained.dataset, Dataset)
    contract = None if trained.dataset is None else _contract(store, trained.dataset)
    code = dict(checkpoint.provenance.get("code") or {})
    return ModelFacts(
        store=store,
        version=version,
        alias=alias,
        trained=trained,
        evaluation=evaluation,
        metrics_of=store.manifest(version.evaluation).settings.get("evaluate", {}),
        dataset=dataset,
        contract=contract,
        receipt=_promotion(store, version),
        report=latest_report(store, str(made.get("run_id", ""))) if made.get("run_id") else None,
        code={"commit": code.get("commit"), "dirty": bool(code.get("dirty"))},
        trained_at=str(checkpoint.provenance.get("finished") or ""),
        withholds=_withholds(store, str(made.get("run_id", ""))),
    )


def _contract(store: Store, dataset: Ref) -> ContractReport | None:
    """The report of the contract that a dataset's raw rows met; None if there was no contract."""
    ref = store.manifest(dataset).parent_in("contracts")
    try:
        return None if ref is None else read_handoff(store, ref, ContractReport)
    except FileNotFoundError:
        return None


def _promotion(store: Store, version: ModelVersion) -> Receipt | None:
    """The first receipt of a promotion of this version, of any alias."""
    for alias in store.list(layout.aliases(version.name)):
        if alias == "history":
            continue
        for receipt in registry.history(store, version.name, alias):
            if receipt.decision == "promoted" and receipt.candidate == version.ref and receipt.gates:
                return receipt
    return None


def _withholds(store: Store, run_id: str) -> bool:
    """Whether the run's data has sensitive columns; assumed if the run is not recorded."""
    if not run_id or not store.exists(layout.resolved(run_id)):
        return True
    data = store.read_as(layout.resolved(run_id), lambda resolved: resolved["spec"]["data"])
    return not isinstance(data, dict) or bool(data.get("sensitive"))
