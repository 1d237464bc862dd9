"""A person's decision to protect an alias, or to end its protection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_contracts.approvals import Protection
from data_contracts.errors import UsageError
from infra.approvals import decide as decide_protection
from infra.approvals import protection, protections, signed_protection
from infra.audit import now
from infra.processes.environment import SIGNING_KEY
from infra.store import Store
from tasks.stages.decisions.answers import checked_name
from tasks.stages.decisions.rollback import checked_reason

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey


def protect(
    store: Store,
    model: str,
    alias: str,
    by: str,
    reason: str,
    keys: Sequence[str] = (),
    key: SigningKey | None = None,
) -> Protection:
    """Protect an alias, or change how it is protected: its promotions need an approval, its rollbacks a reason.

    The model need not exist yet. UsageError if a name cannot be one, there is no reason, or there is no key although an
    earlier decision is signed.

    Args:
        keys: public keys of approvers, in PEM; only answers that are signed with one of them count.
        key: the release key, which signs the decision; None: the decision is not signed.
    """
    decision = _decision(model, alias, by, reason, protected=True)
    return _decided(store, decision.model_copy(update={"keys": list(dict.fromkeys(keys))}), key)


def unprotect(store: Store, model: str, alias: str, by: str, reason: str, key: SigningKey | None = None) -> Protection:
    """End the protection of an alias; its records stay. UsageError as `protect`, or if it is not protected."""
    decision = _decision(model, alias, by, reason, protected=False)
    if protection(store, model, alias) is None:
        raise UsageError(f"{model}@{alias} is not protected.")
    return _decided(store, decision, key)


def _decided(store: Store, decision: Protection, key: SigningKey | None) -> Protection:
    if key is not None:
        return decide_protection(store, decision, lambda numbered: signed_protection(numbered, key))
    if any(one.signature for one in protections(store, decision.model, decision.alias)):
        raise UsageError(
            f"Decisions about {decision.name} are signed, and no key is configured to sign the next one.",
            remedy=f"Name the release key: {SIGNING_KEY}=FILE.",
        )
    return decide_protection(store, decision)


def _decision(model: str, alias: str, by: str, reason: str, *, protected: bool) -> Protection:
    why, name = checked_reason(reason), checked_name(by)
    return Protection(model=model, alias=alias, protected=protected, by=name, at=now(), reason=why)
