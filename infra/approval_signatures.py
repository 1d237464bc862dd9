"""Signed answers: an envelope (DSSE) around an answer, which counts only with the key of an approver.

The signing libraries are imported only where an answer is signed or an alias has approvers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_contracts.approvals import PAYLOAD_TYPE, Answer, Protection
from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey, SigningKey


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


def key_ids(protection: Protection | None) -> list[str]:
    """The ids of the approvers' keys; [] if answers need no signature."""
    return [] if protection is None or not protection.keys else [key.id for key in _approvers(protection.keys)]


def fault(answer: Answer, protection: Protection | None) -> str:
    """Why the answer does not count, as the end of a sentence; "" if it does: an approver signed it, or none need."""
    if protection is None or not protection.keys:
        return ""
    if answer.signature is None:
        return f"the answer of {answer.by} is not signed, and {protection.name} takes signed answers only"
    from infra.signing.envelopes import verify

    try:
        found = verify(canonical(answer.signature), PAYLOAD_TYPE, _approvers(protection.keys), "the answer")
    except CorruptError as error:
        return f"the answer of {answer.by} is not signed by an approver: {error.message.rstrip('.')}"
    if found.payload != answer.signed_bytes:
        return f"the answer of {answer.by} is not what was signed"
    return ""


def refuse_stranger(key: SigningKey | None, protection: Protection | None) -> None:
    """UsageError if an alias takes signed answers only, and this key is not one of its approvers'."""
    known = key_ids(protection)
    if not known or protection is None:
        return
    if key is None:
        raise UsageError(
            f"{protection.name} takes signed answers only.",
            remedy="Name your private key: --key FILE or --key env:NAME.",
        )
    if key.public.id not in known:
        raise UsageError(
            f"The key {key.public.id[:16]} is not one of the approvers' keys of {protection.name} "
            f"({', '.join(one[:16] for one in known)}).",
            remedy="Sign with one of these, or add your public key with `trainwright protect`.",
        )


def _approvers(pems: Sequence[str]) -> list[PublicKey]:
    from infra.signing.keys import parse_public_key

    try:
        return [parse_public_key(pem.encode(), "a key of its approvers") for pem in pems]
    except UsageError as error:
        raise CorruptError(f"The protection of the alias cannot be read: {error.message}") from error
