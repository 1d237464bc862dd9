"""The inputs of a run in the store: written once when they are resolved, and read when the run continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from data_contracts.resolved import Resolved
from infra.signing.moves import sign_inputs
from infra.store import Store, layout

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey


def record_inputs(store: Store, resolved: Resolved, signer: SigningKey | None) -> Resolved:
    """Store what was resolved, signed if there is a key; returns that, or what another process of the run stored."""
    if store.create_once(layout.resolved(resolved.run_id), resolved.to_json()):
        if signer is not None:
            sign_inputs(store, resolved, signer)
        return resolved
    store.claim(layout.run(resolved.run_id))
    return read_inputs(store, resolved.run_id)


def read_inputs(store: Store, run_id: str) -> Resolved:
    """The inputs of a run; CorruptError for those of another, which may be signed, too. FileNotFoundError."""

    def parse(value: dict[str, Any]) -> Resolved:
        found = Resolved.from_json(value)
        if found.run_id != run_id:
            raise ValueError(f"these are the inputs of the run {found.run_id[:80]!a}")
        return found

    return store.read_as(layout.resolved(run_id), parse)
