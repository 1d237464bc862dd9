"""The signature of a run's inputs: made when they are resolved with a key, and verified before the run promotes.

A run that waits, or was cut off, reads its spec from the store when it continues. Without this signature, whoever can
write to the store could let it continue with other gates, other approvers or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from data_contracts.canonical import canonical, digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.resolved import Resolved
from infra.store import Store, layout

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey

PAYLOAD_TYPE = "application/vnd.trainwright.inputs+json"


def sign_inputs(store: Store, resolved: Resolved, key: SigningKey) -> None:
    """Sign the inputs that this process has resolved and stored; never those that were found in the store."""
    from infra.signing.envelopes import sign_bytes

    path = layout.inputs_signature(resolved.run_id)
    store.create_once(path, sign_bytes(_payload(resolved), PAYLOAD_TYPE, key))


def refuse_unsigned_inputs(store: Store, resolved: Resolved, key: SigningKey) -> None:
    """Refuse to continue a run whose inputs this key did not sign when they were resolved.

    Raises:
        UsageError: they are not signed, because there was no key, or the signature was deleted.
        CorruptError: they are not what was signed.
    """
    from infra.signing.envelopes import verify

    path = layout.inputs_signature(resolved.run_id)
    try:
        found = verify(store.read(path), PAYLOAD_TYPE, [key.public], path)
    except FileNotFoundError as error:
        raise UsageError(
            f"The inputs of the run {resolved.run_id} were not signed with a key when they were resolved, so this key "
            "does not promote what they ask for.",
            remedy="Begin a new run with the key: `trainwright run SPEC` reuses everything that is sealed.",
        ) from error
    if found.payload != _payload(resolved):
        raise CorruptError(
            f"{layout.resolved(resolved.run_id)} is not what was signed.",
            remedy="Find out who changed it, and begin a new run.",
            details={"file": path},
        )


def _payload(resolved: Resolved) -> bytes:
    return canonical({"run_id": resolved.run_id, "digest": digest(resolved.to_json())})
