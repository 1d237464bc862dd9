"""One key for each process: the spec's or the environment's, and two different ones are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from data_contracts.errors import UsageError
from infra.processes.environment import SIGNING_KEY, for_user_code
from infra.signing.keys import PASSWORD_VARIABLE, PRIVATE_FILE
from infra.signing.signatures import configured_key
from tests.support.signed import pair


def test_the_key_is_the_specs_or_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIGNING_KEY, raising=False)
    assert configured_key() is None
    (one, _, _), (two, _, _) = pair(tmp_path / "one"), pair(tmp_path / "two")
    assert configured_key(f"file:one/{PRIVATE_FILE}", tmp_path) == one
    monkeypatch.setenv(SIGNING_KEY, str(tmp_path / "two" / PRIVATE_FILE))
    assert configured_key() == two
    assert configured_key(f"env:{SIGNING_KEY}", tmp_path) == two
    assert configured_key(f"file:two/{PRIVATE_FILE}", tmp_path) == two
    with pytest.raises(UsageError, match="Two signers: promote.sign names the key"):
        configured_key(f"file:one/{PRIVATE_FILE}", tmp_path)
    monkeypatch.setenv(SIGNING_KEY, " ")
    assert configured_key() is None


def test_a_key_without_a_format_for_models_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = ed25519.Ed25519PrivateKey.generate()
    monkeypatch.setenv(SIGNING_KEY, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())
    with pytest.raises(UsageError, match="names a key with Ed25519"):
        configured_key()


def test_processes_with_the_users_code_do_not_get_the_key_or_its_password(tmp_path: Path) -> None:
    pair(tmp_path)
    text = (tmp_path / PRIVATE_FILE).read_text()
    environment = {SIGNING_KEY: "/a/path", PASSWORD_VARIABLE: "word", "SIGNER": text, "HARMLESS": "1"}
    request = {"promote": {"sign": "env:SIGNER"}, "store": {"uri": "/s"}}
    assert {name for name in for_user_code(environment, request) if name in environment} == {"HARMLESS"}


def test_nothing_is_imported_for_signatures_unless_a_key_is_configured() -> None:
    code = "import sys, tasks.stages.promote, tasks.queries.proof, flows.commands.queries\n"
    code += "print([one for one in ('cryptography', 'securesystemslib', 'google.protobuf') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
