"""Checks `promote.require`, which is about how the candidate was made; the gates are about how good it is.

- `signed`: a key is configured, so the receipt and the model's files are signed.
- `contract`: the rows met a contract, with at least one critical expectation, all of which held.
- `clean_commit`: the training and this run came from a Git commit without uncommitted changes.
- `approved`: a person approved the promotion (`tasks.stages.decisions.approval`, once all gates are met).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from data_contracts.errors import GateNotMet, UsageError
from data_contracts.handoffs import Checkpoint, ContractReport, Dataset
from infra.processes.environment import SIGNING_KEY
from infra.records.handoffs import read_handoff
from infra.records.receipts import pointed_at
from infra.signing.moves import configured_key, refuse_unsigned_inputs
from infra.store import Manifest
from tasks.run.run import Run
from tasks.stages.decisions.approvers import approvers_of

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey


def signing_key(run: Run) -> SigningKey | None:
    """The key of `promote.sign` or of this process's environment; None if there is none.

    UsageError if it cannot be used, or if there is none although `signed` is required.
    """
    key = configured_key(run.spec.promote.sign, run.root)
    if key is None and "signed" in run.spec.promote.require:
        raise UsageError(
            "promote.require asks for signed, and no key is configured.",
            remedy=f"Name one with promote.sign or {SIGNING_KEY}; `trainwright key new DIR` makes a pair.",
        )
    return key


def refuse_early(run: Run) -> None:
    """Refuse, before any work, if it is already known that the candidate could not be promoted.

    Raises:
        UsageError: a requirement cannot be met, a key cannot be used, or the run's inputs are not signed with it.
        CorruptError: the run's inputs are not what was signed.
    """
    key = signing_key(run)
    if key is not None and run.recorded:
        refuse_unsigned_inputs(run.store, run.resolved, key)
    if run.spec.promote.approvers:
        approvers_of(run)
    required = run.spec.promote.require
    if "contract" in required and (run.external or run.spec.contract is None):
        raise UsageError(
            "promote.require asks for contract, and "
            + ("the data is external." if run.external else "the spec has no contract."),
            remedy="Give the data a contract, or leave contract out of promote.require.",
        )
    if "clean_commit" in required and (wrong := _not_clean(run.resolved.commit, run.resolved.dirty)):
        raise UsageError(
            f"promote.require asks for clean_commit, and the project {wrong}.",
            remedy="Commit, and run again; or leave it out: --set promote.require=[]",
        )


def met(run: Run, checkpoint: Checkpoint, dataset: Dataset | None) -> list[str]:
    """The names of all requirements, which the candidate meets.

    Raises:
        GateNotMet: the candidate does not meet one; the sentence says which and why.
    """
    refuse_early(run)
    required = run.spec.promote.require
    for name, fault in (("contract", _no_contract), ("clean_commit", _not_committed)):
        if name in required and (why := fault(run, checkpoint, dataset)):
            raise GateNotMet(
                f"Not promoted: promote.require asks for {name}, and {why}.",
                remedy="Train again with --new from what meets it, or leave it out of promote.require.",
                details={"require": name},
            )
    return list(required)


def _no_contract(run: Run, checkpoint: Checkpoint, dataset: Dataset | None) -> str:
    if dataset is None:
        return "the data is external"
    sealed = pointed_at(run.store.manifest, dataset.ref)
    reports = [pointed_at(run.store.manifest, ref) for ref in sealed.parents]
    reports = [one for one in reports if one.kind == "contract"]
    if not reports:
        return f"{dataset.ref.uri} was made without one"
    return next(filter(None, (_broken(run, one) for one in reports)), "")


def _broken(run: Run, sealed: Manifest) -> str:
    """Why a contract report is not enough; "" if it is."""
    report = read_handoff(run.store, sealed.ref, ContractReport)
    expectations: list[dict[str, Any]] = (sealed.settings.get("suite") or {}).get("expectations", [])
    critical = [one for one in expectations if one.get("severity", "critical") == "critical"]
    if not report.accepted:
        return f"{sealed.uri} rejected the data"
    if not critical:
        return f"{sealed.uri} has no critical expectation"
    if broken := [one for one in report.failures if one.severity == "critical"]:
        return f"{sealed.uri} found that {broken[0].expectation} is broken"
    return ""


def _not_committed(run: Run, checkpoint: Checkpoint, dataset: Dataset | None) -> str:
    code = pointed_at(run.store.manifest, checkpoint.ref).provenance.get("code") or {}
    wrong = _not_clean(code.get("commit"), code.get("dirty", True))
    return f"the training's project {wrong.replace('is', 'was').replace('has', 'had')}" if wrong else ""


def _not_clean(commit: str | None, dirty: bool) -> str:
    if commit is None:
        return "is not in a Git repository with a commit"
    return "has changes that are not committed" if dirty else ""
