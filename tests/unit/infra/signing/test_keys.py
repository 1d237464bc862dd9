"""Private keys come from a place that their owner alone can read; anything else is refused in one sentence."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from data_contracts.approvals import Protection
from data_contracts.errors import CorruptError, UsageError
from infra.approvals import keys_of
from infra.signing.keys import (
    PASSWORD_VARIABLE,
    PRIVATE_FILE,
    PUBLIC_FILE,
    load_public_key,
    load_signing_key,
    make_key_pair,
)
from tests.support.files import umask


def pem(key: object, password: bytes | None = None) -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)  # type: ignore[attr-defined]


def public_pem(key: object) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]


P256 = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(data: bytes, mode: int = 0o600) -> Path:
        path = tmp_path / "key"
        path.write_bytes(data)
        path.chmod(mode)
        return path

    return write


@pytest.mark.parametrize("key", [P256, ed25519.Ed25519PrivateKey.generate()], ids=["P-256", "Ed25519"])
def test_a_key_is_found_by_its_file_its_variable_and_a_path_in_a_variable(
    key: object, written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(pem(key))
    monkeypatch.setenv("A_KEY", pem(key).decode())
    monkeypatch.setenv("A_PATH", str(path))
    names = (f"file:{path}", "file:key", "env:A_KEY", "env:A_PATH")
    found = [load_signing_key(one, path.parent, "promote.sign") for one in names]
    (path.parent / "public").write_bytes(public_pem(key))
    assert {one.public.id for one in found} == {load_public_key(path.parent / "public").id}
    assert "PRIVATE" not in repr(found)
    assert pem(key).decode().splitlines()[1] not in repr(found)


REFUSED = {
    "missing": (None, 0o600, "cannot be read (No such file or directory)"),
    "read by the group": (pem(P256), 0o640, "may be read by others (mode 640)"),
    "read by all": (pem(P256), 0o644, "may be read by others (mode 644)"),
    "public": (public_pem(P256), 0o600, "a public key, which cannot sign"),
    "two": (pem(P256) + pem(ec.generate_private_key(ec.SECP256R1())), 0o600, "more than one key"),
    "RSA": (pem(rsa.generate_private_key(65537, 2048)), 0o600, "of the algorithm RSA are not used"),
    "P-384": (pem(ec.generate_private_key(ec.SECP384R1())), 0o600, "on secp384r1 are not used"),
    "encrypted": (pem(P256, b"secret"), 0o600, f"encrypted, and {PASSWORD_VARIABLE} is not set"),
    "empty": (b"", 0o600, "not a private key in PEM"),
    "noise": (bytes(range(256)), 0o600, "not a private key in PEM"),
    "cut": (pem(P256)[:80] + b"\n-----END PRIVATE KEY-----\n", 0o600, "not a private key that can be read"),
    "large": (b" " * 2**17, 0o600, "larger than any key"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_key_that_cannot_sign_is_refused_in_one_sentence(
    case: str, tmp_path: Path, written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    data, mode, words = REFUSED[case]
    if data is not None:
        written(data, mode)
    with pytest.raises(UsageError) as refused:
        load_signing_key("file:key", tmp_path, "promote.sign")
    assert words in refused.value.message
    assert refused.value.message.startswith("promote.sign")
    assert "\n" not in refused.value.message
    body = (data or b"no key").decode(errors="ignore").splitlines()
    assert not any(len(line) > 20 and line in str(refused.value) for line in body[1:])


def test_a_password_that_opens_a_key_or_not_and_what_is_not_a_file(
    tmp_path: Path, written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(pem(P256, b"secret"))
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    assert load_signing_key("file:key", tmp_path, "sign").public.pem() == public_pem(P256)
    monkeypatch.setenv(PASSWORD_VARIABLE, "another")
    with pytest.raises(UsageError, match=f"{PASSWORD_VARIABLE} is not the password"):
        load_signing_key("file:key", tmp_path, "sign")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("pipe", "."):
        with pytest.raises(UsageError, match="is not a file with a key"):
            load_signing_key(f"file:{name}", tmp_path, "sign")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(UsageError, match="NO_SUCH_KEY, which is not set"):
        load_signing_key("env:NO_SUCH_KEY", tmp_path, "sign")
    for named in ("", "key", "file:", "block:a"):
        with pytest.raises(UsageError, match="must name a key as file:PATH or env:NAME"):
            load_signing_key(named, tmp_path, "sign")


def test_a_private_key_in_place_of_a_public_one(written: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="is a private key"):
        load_public_key(written(pem(P256)))
    for data in (b"", public_pem(P256) * 2, b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"):
        with pytest.raises(UsageError, match="not a file with one public key"):
            load_public_key(written(data))
    with pytest.raises(UsageError, match="algorithm RSA"):
        load_public_key(written(public_pem(rsa.generate_private_key(65537, 2048))))


@pytest.mark.parametrize("mask", [0o000, 0o277], ids=["open", "closed"])
def test_a_new_pair_signs_its_private_half_is_the_owners_and_nothing_is_replaced(
    mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    with umask(mask):
        private, public = make_key_pair(tmp_path)
    assert (private.name, public.name) == (PRIVATE_FILE, PUBLIC_FILE)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (private, public)] == [0o600, 0o644]
    kept = private.read_bytes()
    assert load_signing_key(f"file:{private}", tmp_path, "sign").public == load_public_key(public)
    with pytest.raises(UsageError, match="exists already"):
        make_key_pair(tmp_path)
    assert private.read_bytes() == kept
    monkeypatch.setenv(PASSWORD_VARIABLE, "word")
    encrypted, _ = make_key_pair(tmp_path / "another")
    assert b"ENCRYPTED" in encrypted.read_bytes()
    load_signing_key(f"file:{encrypted}", tmp_path, "sign")


def test_a_protection_takes_no_key_that_an_option_would_refuse() -> None:
    key = public_pem(ec.generate_private_key(ec.SECP384R1())).decode()
    protection = Protection(
        model="m", alias="a", protected=True, keys=[key], by="ann", at="2026-11-25T10:00:00+00:00", reason="r"
    )
    with pytest.raises(CorruptError, match="on secp384r1 are not used here"):
        keys_of(protection)


def test_a_variable_that_is_not_for_keys_is_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec may name any variable as its key, and errors are stored and shown."""
    monkeypatch.setenv("SOME_TOKEN", "ghp_0123456789")
    with pytest.raises(UsageError, match="the key file that SOME_TOKEN names cannot be read") as raised:
        load_signing_key("env:SOME_TOKEN", tmp_path, "promote.sign")
    assert "ghp_" not in str(raised.value)
