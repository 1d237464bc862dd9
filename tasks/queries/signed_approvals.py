"""The approvals in signed receipts, verified again: that an approver's key signed just what the receipt says.

The release key's signature already covers the receipt. This shows, without trust in the process that promoted, that the
approver signed this alias, candidate, champion and outcome of the gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from data_contracts.alias_moves import Approval
from data_contracts.approvals import About, Answer, gates_digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.foreign_files import parse_json
from data_contracts.handoffs import Receipt
from infra.approvals import keys_of, payload_of, protections
from infra.models import registry
from infra.store import Store
from infra.store.records import corrupt, parsed

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey

_VOUCHED = {
    "spec": "the run's spec named the key",
    "protection": "the release key signed the protection that has the key",
    "": "nothing vouches for the key: it lay in the store, and neither the spec nor the release key named it",
}


@dataclass(frozen=True)
class ProvenApproval:
    """An approval in a signed receipt.

    Attributes:
        key: id of the approver's key; "" if the answer is not signed.
        sentence: what is known of it, for a person.
    """

    version: int | None
    by: str
    key: str
    vouched: str
    sentence: str


def proven_approvals(store: Store, receipts: Sequence[Receipt]) -> list[ProvenApproval]:
    """The approvals of receipts, in their order.

    CorruptError if a signed answer is not of the key that the receipt names, or is about something else.
    """
    return [_proven(store, one, one.approval) for one in receipts if one.approval is not None]


def _proven(store: Store, receipt: Receipt, approval: Approval) -> ProvenApproval:
    who = f"{approval.by} approved version {receipt.version}"
    if approval.signature is None:
        return ProvenApproval(
            receipt.version, approval.by, "", "", f"{who}: the name is as stated, and nobody signed it"
        )
    (identity,) = approval.keys
    key = _key(store, receipt, approval)
    signed = f"signed with the key {identity[:16]}…"
    if key is None:
        said = f"{who}, {signed}, which is not in the store any more: the signature was not verified again"
    else:
        said = f"{who}, {signed}; {_VOUCHED[approval.vouched]}"
        about = _signed_about(store, receipt, approval, key)
        if about is None:
            said += "; an earlier Trainwright signed only the digest of the question"
        elif about.store not in ("", store.uri):
            said += f"; it was given in the store {about.store}, and this is {store.uri}"
    return ProvenApproval(receipt.version, approval.by, identity, approval.vouched, said)


def _key(store: Store, receipt: Receipt, approval: Approval) -> PublicKey | None:
    """The key that a receipt names; those of earlier versions have only its id, and the alias's protections the key."""
    if approval.public_key:
        from infra.signing.keys import parse_public_key

        try:
            return parse_public_key(approval.public_key.encode(), "the approver's key")
        except UsageError as error:
            raise corrupt(_place(receipt), "names a key that cannot be read") from error
    known = [key for one in protections(store, receipt.model, receipt.alias) for key in keys_of(one).values()]
    return next((key for key in known if key.id in approval.keys), None)


def _signed_about(store: Store, receipt: Receipt, approval: Approval, key: PublicKey) -> About | None:
    """What the answer itself says that it is about; CorruptError unless the key signed what the receipt says."""
    assert approval.signature is not None
    payload = payload_of(approval.signature, [key])
    answer = parsed(_place(receipt), lambda data: Answer.from_json(parse_json(data)), payload)
    said = (answer.question, answer.by, answer.via, answer.reason, answer.at, answer.decision)
    kept = (approval.question, approval.by, approval.via, approval.reason, approval.at, "approved")
    if said != kept or approval.keys != [key.id] or answer.signed_bytes != payload:
        raise _differs(receipt)
    # The store may have moved since.
    if answer.about is not None and answer.about.model_copy(update={"store": ""}) != _about(store, receipt):
        raise _differs(receipt)
    return answer.about


def _about(store: Store, receipt: Receipt) -> About:
    assert receipt.candidate is not None
    candidate = registry.model_version(store, receipt.candidate).checkpoint.ref.id
    champion = receipt.champion.id if receipt.champion is not None else ""
    gates = gates_digest(receipt.gates)
    return About(model=receipt.model, alias=receipt.alias, candidate=candidate, champion=champion, gates=gates)


def _place(receipt: Receipt) -> str:
    assert receipt.ref is not None
    return f"{receipt.ref.uri}/receipt.json"


def _differs(receipt: Receipt) -> CorruptError:
    place = _place(receipt)
    return CorruptError(f"{place} has a signed approval of something else than it says.", details={"file": place})
