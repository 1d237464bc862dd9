"""When is signed and verified: at an alias's move, when a run's inputs are resolved, and before the run promotes.

The spec names the key (`promote.sign`), or `TRAINWRIGHT_SIGNING_KEY` does. The libraries are imported only if a key is
configured or the receipts before are signed.

A run that waits, or was cut off, reads its spec from the store when it continues. Without the signature of its inputs,
whoever can write to the store could let it continue with other gates, other approvers or none.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from data_contracts.canonical import canonical, digest
from data_contracts.errors import CorruptError, Interrupted, UsageError
from data_contracts.handoffs import Ref
from data_contracts.resolved import Resolved
from infra.processes.environment import SIGNING_KEY
from infra.records.receipts import is_signed
from infra.signing.keys import SigningKey, load_signing_key, sign_bytes, verify
from infra.signing.signatures import sign_receipt, withdraw, withdraw_others
from infra.store import Store, layout

log = logging.getLogger("trainwright")
PAYLOAD_TYPE = "application/vnd.trainwright.inputs+json"


def configured_key(named: str | None = None, root: Path = Path()) -> SigningKey | None:
    """The key to sign with; None if none is configured.

    Args:
        named: `promote.sign` of the spec in the folder `root`, if there is a spec that names a key.

    Raises:
        UsageError: the key cannot be used, or the spec and the variable name two keys.
    """
    variable = f"env:{SIGNING_KEY}" if os.environ.get(SIGNING_KEY, "").strip() else None
    if named is None and variable is None:
        return None
    if named is None:
        return _for_models(load_signing_key(f"env:{SIGNING_KEY}", Path.cwd(), SIGNING_KEY), SIGNING_KEY)
    key = _for_models(load_signing_key(named, root, "promote.sign"), "promote.sign")
    if variable is not None and named != variable:
        other = load_signing_key(variable, Path.cwd(), SIGNING_KEY)
        if other.public.id != key.public.id:
            raise UsageError(
                f"Two signers: promote.sign names the key {key.public.id[:16]}…, {SIGNING_KEY} the key "
                f"{other.public.id[:16]}….",
                remedy=f"Unset {SIGNING_KEY}, or leave promote.sign out.",
            )
    return key


def _for_models(key: SigningKey, what: str) -> SigningKey:
    if not key.public.is_elliptic:
        raise UsageError(
            f"{what} names a key with Ed25519, and OpenSSF's format for a model's files has no such keys.",
            remedy="Use an ECDSA key on P-256: `trainwright key new DIR`.",
        )
    return key


def sign_inputs(store: Store, resolved: Resolved, key: SigningKey) -> None:
    """Sign the inputs that this process has resolved and stored; never those that were found in the store."""
    path = layout.inputs_signature(resolved.run_id)
    store.create_once(path, sign_bytes(_payload(resolved), PAYLOAD_TYPE, key))


def refuse_unsigned_inputs(store: Store, resolved: Resolved, key: SigningKey) -> None:
    """Refuse to continue a run whose inputs this key did not sign when they were resolved.

    Raises:
        UsageError: they are not signed, because there was no key, or the signature was deleted.
        CorruptError: they are not what was signed.
    """
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


@dataclass(frozen=True)
class MoveSigning:
    """What is done about the signatures of one move; nothing without a key."""

    store: Store
    key: SigningKey | None

    def before(self, receipt: Ref) -> None:
        """Sign the receipt, so that the alias never names one without a signature."""
        if self.key is not None:
            sign_receipt(self.store, receipt, self.key)

    def lost(self, receipt: Ref) -> None:
        """Take the signatures back: the receipt must not pass for one that was made."""
        if self.key is not None:
            withdraw(self.store, receipt)

    def won(self, receipt: Ref) -> None:
        """Delete the signatures of moves that followed the same receipt and were stopped before they were made.

        The move is made, whatever becomes of this: what is left makes no proof of the next move fail.
        """
        if self.key is not None:
            try:
                withdraw_others(self.store, receipt)
            except Interrupted as error:
                log.warning("The alias moved, but the signatures of stopped moves were not deleted: %s", error.message)


def signing_of(store: Store, newest: Ref | None, what: str, key: SigningKey | None) -> MoveSigning:
    """How the next move of an alias is signed.

    Args:
        newest: the alias's newest receipt; `what`: the alias, for errors.
        key: default: the key that `TRAINWRIGHT_SIGNING_KEY` names.

    Raises:
        UsageError: the newest receipt is signed, and there is no key for the next one.
    """
    key = configured_key() if key is None else key
    if key is None and is_signed(store, newest):
        raise UsageError(
            f"{what} has signed receipts, and no key is configured to sign the next one.",
            remedy=f"Name the key: {SIGNING_KEY}=FILE, or promote.sign in the spec.",
        )
    return MoveSigning(store, key)
