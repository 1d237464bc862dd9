"""Which aliases are protected. The records lie in the store, so that a spec cannot leave the protection out.

Each decision is a record of its own, created once and never deleted; the newest one holds.
"""

from __future__ import annotations

from data_contracts.approvals import Protection
from data_contracts.errors import CorruptError
from infra.store import Store, layout


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
    """The protection of an alias; None if it is not protected."""
    found = protections(store, model, alias)
    return found[-1] if found and found[-1].protected else None


def decide(store: Store, decision: Protection) -> Protection:
    """Store a decision as the newest."""
    model, alias = decision.model, decision.alias
    k = len(protections(store, model, alias))
    while not store.create_once(layout.protection(model, alias, k), decision.to_json()):
        k += 1
    return decision


def _numbers(store: Store, model: str, alias: str) -> list[int]:
    names = [name.removesuffix(".json") for name in store.list(layout.protections(model, alias))]
    return [int(name) for name in names if name.isdecimal()]
