"""Key pairs, and the envelopes (DSSE, Dead Simple Signing Envelope) that are signed and verified with them.

A private key is loaded from a place that only its owner can read. Ed25519 and ECDSA on the curve P-256, as PEM.
OpenSSF's format for the files of a model knows elliptic curves only, so the key of a promotion is one on P-256. No
message repeats what a key file holds. Functions import the libraries, which takes 0.2 s, when they need them.

An envelope is JSON with the payload, its type and one signature. There is one way to write an envelope, and `verify`
accepts nothing else: canonical JSON, one signature, and of the two signatures that ECDSA allows for one value (s and
−s) the smaller. So no byte of an envelope can be changed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from data_contracts.approvals import Answer, Protection
from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, UsageError
from data_contracts.foreign_files import parse_json
from data_contracts.rules import RulesVersion

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import KeySerializationEncryption
    from securesystemslib.dsse import Envelope

    Private = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
    Public = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey

R = TypeVar("R", Answer, Protection, RulesVersion)
PASSWORD_VARIABLE = "TRAINWRIGHT_SIGNING_KEY_PASSWORD"
PRIVATE_FILE, PUBLIC_FILE = "signing-key.pem", "signing-key.pub.pem"
_MOST_BYTES = 2**16
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_BEGIN, _PRIVATE, _PUBLIC = b"-----BEGIN ", b"PRIVATE KEY-----", b"PUBLIC KEY-----"
_MAKE_ONE = "`trainwright key new DIR` makes a pair."
IN_TOTO = "application/vnd.in-toto+json"
# A statement lists a model's files.
MAX_BYTES = 2**27
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_UNFIT = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True)
class PublicKey:
    """A key that verifies.

    Attributes:
        id: SHA-256 by which an envelope names the key, as securesystemslib computes it.
    """

    id: str
    public: Public = field(repr=False, compare=False)

    @classmethod
    def of(cls, public: Public) -> PublicKey:
        """The key with its id."""
        from securesystemslib.signer import SSlibKey

        return cls(SSlibKey.from_crypto(public).keyid, public)

    @property
    def is_elliptic(self) -> bool:
        """Whether it is on P-256, and so fit for OpenSSF's model signing."""
        from cryptography.hazmat.primitives.asymmetric import ec

        return isinstance(self.public, ec.EllipticCurvePublicKey)

    def pem(self) -> bytes:
        """SubjectPublicKeyInfo in PEM."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True)
class SigningKey:
    """A private key, which no representation shows."""

    public: PublicKey
    private: Private = field(repr=False, compare=False)


def load_signing_key(named: str, root: Path, what: str) -> SigningKey:
    """The private key that `file:PATH` or `env:NAME` names.

    A variable has the key itself, or the path of its file. An encrypted key is opened with the password in
    `TRAINWRIGHT_SIGNING_KEY_PASSWORD`.

    Args:
        root: folder to which a path is relative.
        what: the field or option that names the key, for errors.

    Raises:
        UsageError: there is no such key, others can read its file, or it is not a private key of a known algorithm.
    """
    kind, _, place = named.partition(":")
    if kind == "file" and place:
        return _parse_private(_read(_path(place, root), what, private=True)[0], what)
    if kind != "env" or not place:
        raise UsageError(f"{what} must name a key as file:PATH or env:NAME.", remedy=_MAKE_ONE)
    value = os.environ.get(place, "")
    if not value.strip():
        raise UsageError(
            f"{what} names the environment variable {place}, which is not set.",
            remedy=f"Set {place} to the key or to the path of its file.",
        )
    if value.lstrip().encode(errors="replace").startswith(_BEGIN):
        return _parse_private(value.encode(errors="replace"), what)
    if "\n" in value.strip() or len(value) > 4096:
        raise UsageError(f"{what}: {place} has neither a key in PEM nor the path of a key file.", remedy=_MAKE_ONE)
    path = _path(value.strip(), root)
    try:
        return _parse_private(_read(path, what, private=True)[0], what)
    except UsageError as error:  # the spec may name a variable that holds a secret, not a path
        raise UsageError(error.message.replace(str(path), f"that {place} names"), remedy=error.remedy) from None


def load_public_key(path: Path | str, what: str = "--key") -> PublicKey:
    """The public key in a PEM file; UsageError if it is missing, or is anything else."""
    return parse_public_key(_read(Path(path).expanduser(), what)[0], f"{what}: {path}")


def load_trusted_key(root: Path, place: str, what: str) -> PublicKey:
    """The public key in a file that decides who is trusted; UsageError as for others, or if anyone may write it.

    Args:
        root: folder to which the path is relative.
    """
    path = _path(place, root)
    data, facts = _read(path, what)
    # Whoever owns the spec's folder owns what it names.
    if facts.st_mode & stat.S_IWOTH or facts.st_uid not in (0, os.geteuid(), root.stat().st_uid):
        raise UsageError(
            f"{what}: other users can change {path}, so anyone of them could name a key of their own.",
            remedy=f"`chmod o-w {path}`, or keep it in a file of your own; check whose key it is.",
        )
    return parse_public_key(data, f"{what}: {path}")


def parse_public_key(data: bytes, what: str) -> PublicKey:
    """The public key that a text in PEM is; UsageError if it is anything else."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if _PRIVATE in data:
        raise UsageError(
            f"{what} is a private key, and verifying needs the public one.",
            remedy="Name the public key's file, and keep the private one to yourself.",
        )
    if data.count(_BEGIN) != 1 or _PUBLIC not in data:
        raise UsageError(f"{what} is not a file with one public key in PEM.", remedy=_MAKE_ONE)
    try:
        found = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{what} is not a public key that can be read.", remedy=_MAKE_ONE) from error
    return PublicKey.of(_supported(found, what))


def make_key_pair(folder: Path) -> tuple[Path, Path]:
    """Write a new pair on P-256 into `folder`: the private key, readable by its owner alone, and the public key.

    The private key is encrypted if `TRAINWRIGHT_SIGNING_KEY_PASSWORD` is set. UsageError if a file is there already.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    private, public = folder / PRIVATE_FILE, folder / PUBLIC_FILE
    key = ec.generate_private_key(ec.SECP256R1())
    password = os.environ.get(PASSWORD_VARIABLE, "").encode()
    encryption: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_new(private, text, 0o600)
        _write_new(public, PublicKey.of(key.public_key()).pem(), 0o644)
    except FileExistsError as error:
        raise UsageError(
            f"{error.filename or folder} exists already, and a key is never replaced.", remedy="Name another folder."
        ) from error
    except OSError as error:
        raise UsageError(f"No key can be written in {folder} ({error.strerror}).") from error
    return private, public


def _write_new(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _path(place: str, root: Path) -> Path:
    return root / Path(place).expanduser()


def _read(path: Path, what: str, *, private: bool = False) -> tuple[bytes, os.stat_result]:
    try:
        # O_NONBLOCK: a named pipe in the key's place must not hang the run.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a path"
        raise UsageError(f"{what}: the key file {path} cannot be read ({why}).", remedy=_MAKE_ONE) from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise UsageError(f"{what}: {path} is not a file with a key.", remedy=_MAKE_ONE)
        if private:
            _refuse_shared(facts, path, what)
        data = os.read(descriptor, _MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{what}: {path} is larger than any key.", remedy=_MAKE_ONE)
    return data, facts


def _refuse_shared(facts: os.stat_result, path: Path, what: str) -> None:
    if facts.st_uid not in (0, os.geteuid()):
        raise UsageError(
            f"{what}: the key file {path} belongs to another user (uid {facts.st_uid}).",
            remedy="Name a key file of your own.",
        )
    if facts.st_mode & _OTHERS:
        mode = stat.S_IMODE(facts.st_mode)
        raise UsageError(
            f"{what}: the key file {path} may be read by others (mode {mode:03o}), so anyone of them could sign.",
            remedy=f"`chmod 600 {path}`, and make a new key if others were on this machine.",
        )


def _parse_private(data: bytes, what: str) -> SigningKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if data.count(_BEGIN) > 1:
        raise UsageError(f"{what}: the key file has more than one key in it.", remedy="Name a file with one key.")
    if _PRIVATE not in data:
        is_public = _PUBLIC in data
        raise UsageError(
            f"{what}: that is {'a public key, which cannot sign' if is_public else 'not a private key in PEM'}.",
            remedy="Name the private key's file." if is_public else _MAKE_ONE,
        )
    is_encrypted = b"ENCRYPTED" in data
    # A key that is not encrypted takes no password.
    password = os.environ.get(PASSWORD_VARIABLE, "").encode() if is_encrypted else b""
    try:
        found = load_pem_private_key(data, password or None)
    except TypeError as error:  # a password was given or missing
        raise UsageError(
            f"{what}: the key is encrypted, and {PASSWORD_VARIABLE} is not set.",
            remedy=f"Set {PASSWORD_VARIABLE} to the key's password.",
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        if is_encrypted:
            raise UsageError(f"{what}: {PASSWORD_VARIABLE} is not the password of the key.") from error
        raise UsageError(f"{what}: that is not a private key that can be read.", remedy=_MAKE_ONE) from error
    public = _supported(found.public_key(), what)
    assert isinstance(found, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey)
    return SigningKey(PublicKey.of(public), found)


def _supported(public: object, what: str) -> Public:
    """The public key; UsageError if it is of an algorithm that is not used here."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    if isinstance(public, ed25519.Ed25519PublicKey):
        return public
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1):
        return public
    name = type(public).__name__.removesuffix("PublicKey").lstrip("_")
    curve = f" on {public.curve.name}" if isinstance(public, ec.EllipticCurvePublicKey) else ""
    raise UsageError(
        f"{what}: keys of the algorithm {name}{curve} are not used here; Ed25519 and ECDSA on P-256 are.",
        remedy=_MAKE_ONE,
    )


@dataclass(frozen=True)
class Signed:
    """What an envelope holds, once its signature was verified."""

    payload: bytes
    key: PublicKey


def sign_bytes(payload: bytes, payload_type: str, key: SigningKey) -> bytes:
    """The envelope of a payload, as JSON."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner, Signature

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
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

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
    except (*_UNFIT, VerificationError) as error:
        raise _refused(what, "has a signature that does not match its content") from error
    if not is_smaller:
        raise _refused(what, "has a signature in another form than it was made in")
    return Signed(envelope.payload, key)


def signed_record(record: R, payload_type: str, key: SigningKey) -> R:
    """The record with a signature over all its other fields."""
    return record.model_copy(update={"signature": json.loads(sign_bytes(record.signed_bytes, payload_type, key))})


def signature_fault(record: Answer | Protection | RulesVersion, payload_type: str, key: PublicKey, what: str) -> str:
    """Why a record is not signed by this key, as the end of a sentence; "" if it is.

    Args:
        what: the record, such as `the decision`.
    """
    if record.signature is None:
        return "it is not signed"
    try:
        found = verify(canonical(record.signature), payload_type, [key], what)
    except CorruptError as error:
        return error.message.rstrip(".")
    return "" if found.payload == record.signed_bytes else "it is not what was signed"


def unverified_payload(data: bytes, what: str) -> tuple[bytes, str]:
    """The payload and the id of its key, which prove nothing; CorruptError if the file is not an envelope."""
    envelope = _parse(data, what)
    return envelope.payload, next(iter(envelope.signatures))


def _parse(data: bytes, what: str) -> Envelope:
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError

    if len(data) > MAX_BYTES:
        raise _refused(what, "is larger than any envelope")
    try:
        envelope = Envelope.from_dict(parse_json(data))
        if canonical(envelope.to_dict()) != data:
            raise ValueError("it is not in canonical form")
    except (*_UNFIT, VerificationError) as error:
        raise _refused(what, "is not an envelope as it was written") from error
    if len(envelope.signatures) != 1:
        raise _refused(what, f"has {len(envelope.signatures)} signatures, not one")
    return envelope


def _with_smaller_s(signature: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

    r, s = decode_dss_signature(signature)
    return encode_dss_signature(r, min(s, _P256_ORDER - s))


def _refused(what: str, why: str) -> CorruptError:
    return CorruptError(f"{what} {why}.", details={"file": what})
