"""An envelope is accepted as it was written, or not at all; securesystemslib alone accepts it, too."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from infra.signing.keys import IN_TOTO, PublicKey, SigningKey, sign_bytes, unverified_payload, verify

KEYS = {"P-256": ec.generate_private_key(ec.SECP256R1()), "Ed25519": ed25519.Ed25519PrivateKey.generate()}
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
PAYLOAD = b'{"a":1}'


def signer(name: str) -> SigningKey:
    return SigningKey(PublicKey.of(KEYS[name].public_key()), KEYS[name])


@pytest.mark.parametrize("name", KEYS)
def test_what_is_signed_is_verified_here_and_by_securesystemslib_alone(name: str) -> None:
    key = signer(name)
    for _ in range(20):  # half of all signatures with ECDSA begin with the larger s
        data = sign_bytes(PAYLOAD, IN_TOTO, key)
        found = verify(data, IN_TOTO, [signer("Ed25519").public, key.public], "f")
        assert (found.payload, found.key.id) == (PAYLOAD, key.public.id)
    assert unverified_payload(data, "f") == (PAYLOAD, key.public.id)
    theirs = Envelope.from_dict(json.loads(data))
    theirs.verify([SSlibKey.from_crypto(KEYS[name].public_key())], 1)
    assert (theirs.payload, theirs.payload_type) == (PAYLOAD, IN_TOTO)


def changed(change: Callable[[dict], None]) -> Callable[[bytes], bytes]:
    def made(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return canonical(value)

    return made


def other_s(value: dict) -> None:
    r, s = decode_dss_signature(base64.b64decode(value["signatures"][0]["sig"]))
    value["signatures"][0]["sig"] = base64.b64encode(encode_dss_signature(r, ORDER - s)).decode()


def other_signature(value: dict) -> None:
    again = sign_bytes(b"{}", IN_TOTO, signer("P-256"))
    value["signatures"] = json.loads(again)["signatures"]


def second_signature(value: dict) -> None:
    value["signatures"] += json.loads(sign_bytes(PAYLOAD, IN_TOTO, signer("Ed25519")))["signatures"]


CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "payload": (changed(lambda one: one.update(payload=base64.b64encode(b'{"a":2}').decode())), "does not match"),
    "type": (changed(lambda one: one.update(payloadType="text/plain")), "is of another type"),
    "the larger s": (changed(other_s), "in another form"),
    "another payload's signature": (changed(other_signature), "does not match"),
    "two signatures": (changed(second_signature), "has 2 signatures, not one"),
    "no signature": (changed(lambda one: one.update(signatures=[])), "has 0 signatures"),
    "a key twice": (lambda data: data.replace(b'{"payload":', b'{"payload":"","payload":'), "is not an envelope"),
    "one field more": (changed(lambda one: one.update(more=1)), "is not an envelope"),
    "white space": (lambda data: data + b"\n", "is not an envelope"),
    "cut": (lambda data: data[:-1], "is not an envelope"),
    "nothing": (lambda data: b"", "is not an envelope"),
    "a list": (lambda data: b"[]", "is not an envelope"),
    "nested deep": (lambda data: b"[" * 100_000, "is not an envelope"),
    "not UTF-8": (lambda data: b"\xff" + data, "is not an envelope"),
    "no padding": (lambda data: data.replace(b'fQ==","payloadType', b'fQ","payloadType'), "is not an envelope"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_envelope_is_refused(change: str) -> None:
    key, (harm, words) = signer("P-256"), CHANGES[change]
    data = sign_bytes(PAYLOAD, IN_TOTO, key)
    assert harm(data) != data
    with pytest.raises(CorruptError, match=words) as refused:
        verify(harm(data), IN_TOTO, [key.public], "a/b.dsse")
    assert refused.value.message.startswith("a/b.dsse")


def test_every_flipped_bit_is_refused() -> None:
    key = signer("P-256")
    data = sign_bytes(PAYLOAD, IN_TOTO, key)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ (1 << at % 7)]) + data[at + 1 :]
        with pytest.raises(CorruptError):
            verify(flipped, IN_TOTO, [key.public], "f")


def test_another_signer_is_named_and_refused(tmp_path: Path) -> None:
    key, stranger = signer("P-256"), signer("Ed25519")
    data = sign_bytes(PAYLOAD, IN_TOTO, stranger)
    with pytest.raises(CorruptError, match=f"'{stranger.public.id[:16]}'…, which is not one of those given"):
        verify(data, IN_TOTO, [key.public], "f")
    forged = data.replace(stranger.public.id.encode(), key.public.id.encode())
    with pytest.raises(CorruptError, match="does not match"):
        verify(forged, IN_TOTO, [key.public], "f")
    with pytest.raises(CorruptError, match="not one of those given"):
        verify(data, IN_TOTO, [], "f")
