"""Signed bytes as a DSSE envelope (Dead Simple Signing Envelope): JSON with the payload, its type and one signature.

There is one way to write an envelope, and `verify` accepts nothing else: canonical JSON, one signature, and of the two
signatures that ECDSA allows for one value (s and −s) the smaller. So no byte of an envelope can be changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, Signature, SSlibKey

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.foreign_json import parse_json
from infra.signing.keys import PublicKey, SigningKey

IN_TOTO = "application/vnd.in-toto+json"
# A statement lists a model's files.
MAX_BYTES = 2**27
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_UNFIT = (ValueError, TypeError, LookupError, AttributeError, RecursionError, VerificationError)


@dataclass(frozen=True)
class Signed:
    """What an envelope holds, once its signature was verified."""

    payload: bytes
    key: PublicKey


def sign_bytes(payload: bytes, payload_type: str, key: SigningKey) -> bytes:
    """The envelope of a payload, as JSON."""
    envelope = Envelope(payload, payload_type, {})
    made = envelope.sign(CryptoSigner(key.private))
    if key.public.is_elliptic:
        smaller = _with_smaller_s(bytes.fromhex(made.signature)).hex()
        envelope.signatures[made.keyid] = Signature(made.keyid, smaller)
    return canonical(envelope.to_dict())


def verify(data: bytes, payload_type: str, keys: Sequence[PublicKey], what: str) -> Signed:
    """The payload of an envelope, and which of the keys signed it.

    Args:
        what: the envelope's file, for errors.

    Raises:
        CorruptError: it is not an envelope as `sign_bytes` writes it, is not of this type, is signed by another key, or
            its signature is of other bytes.
    """
    envelope = _parse(data, what)
    if envelope.payload_type != payload_type:
        raise _refused(what, f"is of another type than {payload_type}")
    (signature,) = envelope.signatures.values()
    key = next((one for one in keys if one.id == signature.keyid), None)
    if key is None:
        raise CorruptError(
            f"{what} is signed by the key {signature.keyid[:16]!a}…, which is not one of those given.",
            remedy="Give the signer's public key, too, if you trust it.",
            details={"file": what},
        )
    try:
        envelope.verify([SSlibKey.from_crypto(key.public)], 1)
        is_smaller = not key.is_elliptic or _with_smaller_s(raw := bytes.fromhex(signature.signature)) == raw
    except _UNFIT as error:
        raise _refused(what, "has a signature that does not match its content") from error
    if not is_smaller:
        raise _refused(what, "has a signature in another form than it was made in")
    return Signed(envelope.payload, key)


def unverified_payload(data: bytes, what: str) -> tuple[bytes, str]:
    """The payload and the id of its key, which prove nothing; CorruptError if the file is not an envelope."""
    envelope = _parse(data, what)
    return envelope.payload, next(iter(envelope.signatures))


def _parse(data: bytes, what: str) -> Envelope:
    if len(data) > MAX_BYTES:
        raise _refused(what, "is larger than any envelope")
    try:
        envelope = Envelope.from_dict(parse_json(data))
        if canonical(envelope.to_dict()) != data:
            raise ValueError("it is not in canonical form")
    except _UNFIT as error:
        raise _refused(what, "is not an envelope as it was written") from error
    if len(envelope.signatures) != 1:
        raise _refused(what, f"has {len(envelope.signatures)} signatures, not one")
    return envelope


def _with_smaller_s(signature: bytes) -> bytes:
    r, s = decode_dss_signature(signature)
    return encode_dss_signature(r, min(s, _P256_ORDER - s))


def _refused(what: str, why: str) -> CorruptError:
    return CorruptError(f"{what} {why}.", details={"file": what})
