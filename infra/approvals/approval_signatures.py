"""Signed answers and protections: envelopes (DSSE) that count only with an approver's key, or with the release key.

The signing libraries are imported only where something is signed or an alias has approvers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from data_contracts.approvals import PAYLOAD_TYPE, PROTECTION_TYPE, Answer, Protection, Question
from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey, SigningKey


@dataclass(frozen=True)
class Approvers:
    """Whose signed answers count for an alias.

    Attributes:
        name: the model and its alias.
        keys: the approvers' keys by their ids; {} if answers need no signature.
        vouched: what vouches for the keys, as `Approval.vouched` says.
    """

    name: str
    keys: Mapping[str, PublicKey]
    vouched: Literal["", "spec", "protection"] = ""

    def fault(self, question: Question, answer: Answer) -> str:
        """Why the answer does not count, as the end of a sentence; "" if an approver signed it, or none needs to."""
        if not self.keys:
            return ""
        if answer.signature is None:
            return f"the answer of {answer.by} is not signed, and {self.name} takes signed answers only"
        try:
            payload = payload_of(answer.signature, list(self.keys.values()))
        except CorruptError as error:
            return f"the answer of {answer.by} is not signed by an approver: {error.message.rstrip('.')}"
        if payload != answer.signed_bytes:
            return f"the answer of {answer.by} is not what was signed"
        if answer.about is not None and answer.about != question.about:
            return f"{answer.by} signed an answer about something else"
        return ""

    def pem_of(self, answer: Answer) -> str:
        """The public key that signed an answer without a fault, in PEM; "" if none need sign."""
        if not self.keys or answer.signature is None:
            return ""
        return self.keys[answer.signature["signatures"][0]["keyid"]].pem().decode()


def payload_of(signature: dict[str, Any], keys: Sequence[PublicKey]) -> bytes:
    """What an answer's signature covers; CorruptError if it is not an envelope that one of the keys signed."""
    from infra.signing.envelopes import verify

    return verify(canonical(signature), PAYLOAD_TYPE, keys, "the answer").payload


def public_pem(path: str) -> str:
    """The public key in a file, in PEM as a protection keeps it; UsageError if it is anything else."""
    from infra.signing.keys import load_public_key

    return load_public_key(path, "--key").pem().decode()


def signing_key(named: str) -> SigningKey:
    """The private key that `--key` names: a path, `file:PATH` or `env:NAME`. UsageError if it cannot be used."""
    from infra.signing.keys import load_signing_key

    return load_signing_key(named if named.startswith(("file:", "env:")) else f"file:{named}", Path.cwd(), "--key")


def signed(answer: Answer, key: SigningKey) -> Answer:
    """The answer with a signature over all its other fields."""
    from infra.signing.envelopes import sign_bytes

    return answer.model_copy(update={"signature": json.loads(sign_bytes(answer.signed_bytes, PAYLOAD_TYPE, key))})


def signed_protection(decision: Protection, key: SigningKey) -> Protection:
    """The decision about an alias with a signature over all its other fields."""
    from infra.signing.envelopes import sign_bytes

    made = json.loads(sign_bytes(decision.signed_bytes, PROTECTION_TYPE, key))
    return decision.model_copy(update={"signature": made})


def protection_fault(decision: Protection, n: int, key: PublicKey) -> str:
    """Why a signed decision, number `n` of its alias, does not count, as the end of a sentence; "" if it does."""
    from infra.signing.envelopes import verify

    try:
        found = verify(canonical(decision.signature), PROTECTION_TYPE, [key], "the decision")
    except CorruptError as error:
        return error.message.rstrip(".")
    if found.payload != decision.signed_bytes or decision.n != n:
        return "the decision is not what was signed"
    return ""


def keys_of(protection: Protection | None) -> dict[str, PublicKey]:
    """The approvers' keys of a protection by their ids; {} if answers need no signature."""
    if protection is None or not protection.keys:
        return {}
    from infra.signing.keys import parse_public_key

    try:
        found = [parse_public_key(pem.encode(), "a key of its approvers") for pem in protection.keys]
    except UsageError as error:
        raise CorruptError(f"The protection of {protection.name} cannot be read: {error.message}") from error
    return {key.id: key for key in found}


def refuse_stranger(key: SigningKey | None, name: str, known: Sequence[str]) -> None:
    """UsageError if the alias `name` takes answers only that are signed with the keys `known`, and `key` is another."""
    if not known:
        return
    if key is None:
        raise UsageError(
            f"{name} takes signed answers only.", remedy="Name your private key: --key FILE or --key env:NAME."
        )
    if key.public.id not in known:
        raise UsageError(
            f"The key {key.public.id[:16]} is not one of the approvers' keys of {name} "
            f"({', '.join(one[:16] for one in known)}).",
            remedy="Sign with one of these, or add your public key where the approvers are named: promote.approvers of "
            "the spec, or `trainwright protect`.",
        )
