"""Earlier hand-offs by their keys, for a stage that is called alone: each says which verb to run first."""

from __future__ import annotations

from data_contracts.errors import UsageError
from data_contracts.handoffs import Checkpoint, ContractReport, Dataset, Evaluation
from infra.handoffs import read_handoff
from infra.store import layout
from tasks.evaluate import evaluation_key, sets_to_score
from tasks.run import Run
from tasks.shard import find_dataset
from tasks.train import find_training, training_key
from tasks.validate import contract_key


def earlier_contract(run: Run) -> ContractReport | None:
    """The accepted contract report of this spec's data; UsageError if there is none."""
    if run.external:
        return None
    found = run.store.newest("contracts", contract_key(run))
    report = read_handoff(run.store, found, ContractReport) if found else None
    if report is None or not report.accepted:
        raise _first("validate", "no accepted contract report for this data and suite")
    return report


def earlier_dataset(run: Run) -> Dataset | None:
    """The dataset of this spec; UsageError if there is none."""
    if run.external:
        return None
    found = find_dataset(run)
    if found is None:
        raise _first("shard", "no dataset for this data and these shard settings")
    return found


def earlier_checkpoint(run: Run, *, verified: bool) -> Checkpoint:
    """The checkpoint that this spec's training handed over, verified if asked; UsageError if there is none."""
    _, checkpoint, _ = find_training(run, training_key(run, earlier_dataset(run)))
    if checkpoint is None:
        raise _first("train", "no finished training for this dataset and these settings")
    if not verified:
        return checkpoint
    if not run.store.exists(layout.verified(checkpoint.ref.uri)):
        raise _first("verify", f"the checkpoint {checkpoint.ref.uri} is not verified")
    return checkpoint.model_copy(update={"state": "verified"})


def earlier_evaluation(run: Run, checkpoint: Checkpoint, dataset: Dataset | None) -> Evaluation:
    """The evaluation of a checkpoint on this spec's sets; UsageError if there is none."""
    key = evaluation_key(run, checkpoint, sets_to_score(run, dataset))
    found = run.store.newest("evaluations", key)
    if found is None:
        raise _first("evaluate", "no evaluation of this checkpoint with these metrics")
    return read_handoff(run.store, found, Evaluation)


def _first(verb: str, what: str) -> UsageError:
    return UsageError(f"There is {what}.", remedy=f"Run `trainwright {verb}` with the same spec first.")
