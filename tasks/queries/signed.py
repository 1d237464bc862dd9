"""Whether the history of an alias is signed by keys that a person trusts, from the alias back to the first signature.

Sealed directories name each other by seals, so the signature of the newest receipt covers everything that the proof
reads. What is left is checked here: that the alias names the newest of the signed receipts, that no signature before it
is gone, and that each statement says what the store says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from data_contracts.errors import CorruptError
from data_contracts.handoffs import ModelVersion, Receipt, Ref
from infra.models import registry
from infra.records.receipts import chain, read_receipt
from infra.store import Manifest, Store, layout
from tasks.queries.kept_seal import require_seal
from tasks.queries.signed_approvals import ProvenApproval, proven_approvals

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey


@dataclass(frozen=True)
class SignedHistory:
    """The signed receipts of an alias.

    Attributes:
        receipts: number of receipts that are signed, the newest among them.
        before: number of older receipts, from the time when no key was configured.
        keys: ids of the keys that signed them, each once, the newest first.
        seal: of the newest receipt; kept elsewhere, it shows later that no older store was put back.
        approvals: of the signed receipts, the newest first, verified again.
    """

    alias: str
    receipts: int
    before: int
    keys: list[str]
    seal: str
    approvals: list[ProvenApproval] = field(default_factory=list)


def signed_history(
    store: Store, version: ModelVersion, alias: str | None, keys: Sequence[PublicKey], at_least: str = ""
) -> tuple[SignedHistory, list[Ref]]:
    """The signed history in which a version stands, and the refs of all receipts of its alias, oldest first.

    Args:
        alias: the alias that was asked for; None: any alias that ever named the version.
        at_least: seal of a receipt that must be in the history; "" for none.

    Raises:
        CorruptError: something is not signed by these keys, not as it was signed, or older than `at_least`.
    """
    if alias is not None:
        return _of_alias(store, version, alias, keys, at_least)
    refused: CorruptError | None = None
    for model, name, _ in registry.aliases(store, ended=True):
        try:
            if model == version.name:
                return _of_alias(store, version, name, keys, at_least, newest=False)
        except CorruptError as error:
            refused = error
    raise refused or CorruptError(
        f"No alias of {version.name} has a signed receipt of version {version.version}.",
        remedy="Only a version that was promoted with a key is signed.",
    )


def _of_alias(
    store: Store, version: ModelVersion, alias: str, keys: Sequence[PublicKey], at_least: str, newest: bool = True
) -> tuple[SignedHistory, list[Ref]]:
    manifests, receipts = _receipts(store, version.name, alias, keys)
    signed = _signed(store, manifests, keys)
    trusted = receipts[: len(signed)]
    if not any(one.candidate == version.ref for one in (trusted[:1] if newest else trusted)):
        raise CorruptError(f"No signed receipt of {version.name}@{alias} names {version.ref.uri}.")
    _refuse_newer(store, version.name, alias, manifests, len(signed), keys)
    seals = [one.seal for one in manifests]
    require_seal(store, version.name, alias, seals[: len(signed)], at_least)
    before, by = len(manifests) - len(signed), list(dict.fromkeys(signed))
    approved = proven_approvals(store, trusted)
    history = SignedHistory(alias, len(signed), before, by, seals[0], approved)
    return history, [one.ref for one in reversed(manifests)]


def _receipts(store: Store, model: str, alias: str, keys: Sequence[PublicKey]) -> tuple[list[Manifest], list[Receipt]]:
    """The receipts of an alias, newest first, if the alias's pointer says what the newest one says."""
    path = layout.alias(model, alias)
    found = registry.read_alias(store, model, alias)
    if found is None:
        raise CorruptError(f"{path}, the alias, is missing.", details={"file": path})
    pointer, number = found
    manifests = list(chain(store, Ref.model_validate(pointer.value["receipt"]), store.verify))
    receipts = [read_receipt(store, one) for one in manifests]
    strays = [one for one in receipts if (one.model, one.alias) != (model, alias)]
    foreign = [one for one in manifests if one.uri.rpartition("/")[0] != layout.history(model, alias)]
    if strays or foreign:
        raise CorruptError(f"{path} leads to receipts of another alias.", details={"file": path})
    newest = receipts[0]
    if newest.candidate is None or (newest.candidate.to_json(), newest.version) != (
        pointer.value["model_version"],
        number,
    ):
        raise CorruptError(f"{path} does not name what its newest receipt names.", details={"file": path})
    return manifests, receipts


def _signed(store: Store, manifests: Sequence[Manifest], keys: Sequence[PublicKey]) -> list[str]:
    """The ids of the keys that signed the receipts, newest first, back to the first that was signed."""
    # Loads `cryptography`, which a proof without keys does not need.
    from infra.signing.signatures import verify_receipt

    signers = []
    for place, manifest in enumerate(manifests):
        signed = verify_receipt(store, manifest, keys)
        if signed.number != len(manifests) - place:
            raise CorruptError(
                f"{manifest.uri} was signed as receipt {signed.number} of its alias, and is number "
                f"{len(manifests) - place} now."
            )
        signers.append(signed.key)
        if not signed.previous_signed:
            break
    return signers


def _refuse_newer(
    store: Store, model: str, alias: str, manifests: Sequence[Manifest], count: int, keys: Sequence[PublicKey]
) -> None:
    """CorruptError if a signed receipt is at least as new as the alias's, or older than where the signatures begin."""
    from infra.signing.signatures import signed_numbers

    in_chain = [one.seal for one in manifests]
    for seal, (number, path) in signed_numbers(store, model, alias, keys).items():
        if seal in in_chain[:count]:
            continue
        if seal in in_chain:
            raise CorruptError(f"{path} is signed, but a later receipt says that nothing was.", details={"file": path})
        if number >= len(manifests):
            raise CorruptError(
                f"{path} is the signature of receipt {number} of {model}@{alias}, which is not in its history of "
                f"{len(manifests)}: the alias was moved back, or a process was stopped while it moved the alias.",
                remedy="Look at `trainwright history`; the next signed move settles what a stopped process left.",
                details={"file": path},
            )
