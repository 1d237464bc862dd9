"""A person's decision to protect an alias, or to end that."""

from __future__ import annotations

from collections.abc import Sequence

from data_contracts.approvals import Protection
from data_contracts.errors import UsageError
from infra import protections
from infra.audit import now
from infra.store import Store
from tasks.stages.answers import checked_name
from tasks.stages.rollback import checked_reason


def protect(store: Store, model: str, alias: str, by: str, reason: str, keys: Sequence[str] = ()) -> Protection:
    """Protect an alias, or change how it is protected: its promotions need an approval, its rollbacks a reason.

    The model need not exist yet. UsageError if a name cannot be one, or there is no reason.

    Args:
        keys: public keys of approvers, in PEM; only answers that are signed with one of them count.
    """
    decision = _decision(model, alias, by, reason, protected=True)
    return protections.decide(store, decision.model_copy(update={"keys": list(dict.fromkeys(keys))}))


def unprotect(store: Store, model: str, alias: str, by: str, reason: str) -> Protection:
    """End the protection of an alias; the records of it stay. UsageError if the alias is not protected."""
    decision = _decision(model, alias, by, reason, protected=False)
    if protections.protection(store, model, alias) is None:
        raise UsageError(f"{model}@{alias} is not protected.")
    return protections.decide(store, decision)


def _decision(model: str, alias: str, by: str, reason: str, *, protected: bool) -> Protection:
    why, name = checked_reason(reason), checked_name(by)
    return Protection(model=model, alias=alias, protected=protected, by=name, at=now(), reason=why)
