"""Which aliases are protected. The records lie in the store, so that a spec cannot leave the protection out.

Each decision is a record of its own, created once and never deleted; the newest one holds. With a release key they are
signed, and each receipt of the alias names the newest decision, so that it cannot be deleted or replaced later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from data_contracts.approvals import Protection
from data_contracts.canonical import digest
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Ref
from infra.approvals.approval_signatures import protection_fault
from infra.records.receipts import pointed_at
from infra.store import Store, layout
from infra.store.records import parsed

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey


def protections(store: Store, model: str, alias: str) -> list[Protection]:
    """All decisions about an alias, oldest first; CorruptError if one is damaged, missing or of another alias."""
    numbers = sorted(_numbers(store, model, alias))
    found = []
    for k, number in enumerate(numbers):
        path = layout.protection(model, alias, k)
        if number != k:
            raise CorruptError(f"{path} is missing, although there is a later one.", details={"file": path})
        one = store.read_as(path, Protection.from_json)
        if (one.model, one.alias) != (model, alias):
            raise CorruptError(f"{path} is about {one.model}@{one.alias}.", details={"file": path})
        found.append(one)
    return found


def protection(store: Store, model: str, alias: str) -> Protection | None:
    """The protection of an alias, as it stands in the store; None if it is not protected."""
    found = protections(store, model, alias)
    return found[-1] if found and found[-1].protected else None


def decide(store: Store, decision: Protection, sign: Callable[[Protection], Protection] | None = None) -> Protection:
    """Store a decision as the newest, signed with its number if `sign` signs it."""
    model, alias = decision.model, decision.alias
    k = len(protections(store, model, alias))
    while True:
        made = decision if sign is None else sign(decision.model_copy(update={"n": k}))
        if store.create_once(layout.protection(model, alias, k), made.to_json()):
            return made
        k += 1


def pin(found: Sequence[Protection]) -> dict[str, Any] | None:
    """What a receipt says of the decisions about its alias: the number and the digest of the newest."""
    return {"n": len(found) - 1, "digest": digest(found[-1].to_json())} if found else None


def refuse_gone(store: Store, found: Sequence[Protection], newest: Ref | None, name: str) -> None:
    """CorruptError if the decision that the newest receipt of an alias (`name`) names is gone, or is another now."""
    if newest is None:
        return
    about = pointed_at(store.manifest, newest).provenance
    pinned = parsed(newest.uri, _pinned, about)
    if pinned is None:
        return
    n, expected = pinned
    if len(found) <= n or digest(found[n].to_json()) != expected:
        raise CorruptError(
            f"Decision {n} about the protection of {name} is not the one that its newest receipt names.",
            remedy="Restore it from a copy of the store, and find out who changed it.",
            details={"file": newest.uri},
        )


def refuse_forged(found: Sequence[Protection], key: PublicKey | None, *, named: bool) -> bool:
    """Whether the release key signed the newest decision about an alias.

    Args:
        key: the release key; None if this process has none.
        named: whether the spec names the approvers, so that unsigned keys in the store can only be fewer.

    Raises:
        CorruptError: the newest decision is not signed, although an earlier one is or it names approvers, or it is not
            signed by the release key.
    """
    if not found:
        return False
    newest, n = found[-1], len(found) - 1
    path = layout.protection(newest.model, newest.alias, n)
    why = ""
    if newest.signature is not None:
        why = "" if key is None else protection_fault(newest, n, key)
    elif any(one.signature is not None for one in found):
        why = "it is not signed, and an earlier one is"
    elif key is not None and newest.keys and not named:
        why = "it names approvers' keys and is not signed"
    if why:
        raise CorruptError(
            f"The release key does not vouch for {path}: {why}.",
            remedy=f"See `trainwright history`, and decide again with the key: `trainwright protect {newest.name} …`.",
            details={"file": path},
        )
    return newest.signature is not None and key is not None


def _pinned(about: Mapping[str, Any]) -> tuple[int, str] | None:
    """What `pin` wrote into the provenance of a receipt; None if it wrote nothing."""
    value = about.get("protection")
    return None if value is None else (int(value["n"]), str(value["digest"]))


def _numbers(store: Store, model: str, alias: str) -> list[int]:
    names = [name.removesuffix(".json") for name in store.list(layout.protections(model, alias))]
    return [int(name) for name in names if name.isdecimal()]
