"""A move with a key is signed before the alias names it; what lost, or was never made, keeps no signature."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from infra.models import registry
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import PRIVATE_FILE
from infra.store import PointerMoved, Store, layout
from infra.store.records import Pointer
from tasks.queries.proof import prove
from tests.support.damage import overwrite
from tests.support.signed import MODEL, SignedStore, pair


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SignedStore:
    key, _, _ = pair(tmp_path / "keys")
    monkeypatch.setenv(SIGNING_KEY, str(tmp_path / "keys" / PRIVATE_FILE))
    return SignedStore(tmp_path, key)


def signatures(made: SignedStore) -> list[str]:
    return [one for one in made.store.list(layout.history(MODEL, "champion")) if not one.isdecimal()]


def names(*numbers: int) -> list[str]:
    return sorted(f"{number}.{what}" for number in numbers for what in layout.SIGNATURES)


def test_every_move_is_signed_and_others_tools_verify_it(made: SignedStore, tmp_path: Path) -> None:
    made.promote(1)
    made.promote(2)
    made.back()
    receipt = made.release()
    assert signatures(made) == names(0, 1, 2, 3)
    public = tmp_path / "keys" / "signing-key.pub.pem"
    theirs = SSlibKey.from_crypto(load_pem_public_key(public.read_bytes()))
    said = {}
    for what in ("receipt", "provenance"):
        path = made.root / f"{receipt.ref.uri}.{what}.dsse"
        envelope = Envelope.from_dict(json.loads(path.read_bytes()))
        envelope.verify([theirs], 1)
        statement = json_format.Parse(envelope.payload, statement_pb2.Statement())
        Statement.copy_from_pb(statement).validate()
        said[what] = json.loads(envelope.payload)
    about = said["receipt"]["predicate"]
    assert said["receipt"]["subject"] == [{"name": receipt.ref.uri, "digest": {"sha256": receipt.ref.seal}}]
    assert (about["number"], about["previousSigned"], about["version"], about["actor"]) == (4, True, 1, "ann")
    assert about["previous"]["uri"] == layout.receipt(MODEL, "champion", 2)
    slsa = said["provenance"]["predicate"]
    json_format.ParseDict(slsa, provenance_pb2.Provenance())
    needed = {one["uri"]: one["digest"] for one in slsa["buildDefinition"]["resolvedDependencies"]}
    assert needed.keys() == {"contracts/c-0", "datasets/d-0", made.code.uri, str(made.project / "rows.csv")}
    assert needed[made.code.uri] == {"sha256": made.code.seal, "gitCommit": "c" * 40}
    version = registry.read_version(made.store, MODEL, 1)
    assert said["provenance"]["subject"][0]["digest"] == {"sha256": version.checkpoint.ref.seal}
    folder = made.root / version.checkpoint.ref.uri
    signature = made.root / f"{receipt.ref.uri}.model.sig"
    command = [sys.executable, "-m", "model_signing", "verify", "key", folder, "--signature", signature]
    command += ["--public_key", public]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert (done.returncode, "Verification succeeded" in done.stdout) == (0, True), done.stdout + done.stderr
    overwrite(folder / "weights-0.safetensors", b"others")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode != 0


def test_a_move_without_a_key_after_a_signed_one_is_refused_and_moves_nothing(
    made: SignedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.promote(1)
    before = sorted(made.root.rglob("*"))
    monkeypatch.delenv(SIGNING_KEY)
    made.key = None
    version, evaluation = made.version(2)
    with pytest.raises(UsageError, match="has signed receipts, and no key is configured"):
        made.move(version, evaluation.ref, "champion")
    added = {str(one.relative_to(made.root)).partition("/")[0] for one in set(made.root.rglob("*")) - set(before)}
    assert "aliases" not in added
    assert made.move(version, evaluation.ref, "canary").version == 2, "another alias has no signatures"


def test_a_move_that_lost_takes_its_signatures_back(made: SignedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made.promote(1)
    loser, winner = made.version(2), made.version(3)
    swap = Pointer.swap
    won = []

    def raced(self: Pointer, expected: object, value: object) -> object:
        if not won:
            won.append(1)
            made.move(winner[0], winner[1].ref, "champion")
        return swap(self, expected, value)  # type: ignore[arg-type]

    monkeypatch.setattr(Pointer, "swap", raced)
    with pytest.raises(PointerMoved):
        made.move(loser[0], loser[1].ref, "champion")
    assert signatures(made) == names(0, 2)
    assert prove(made.store, MODEL, keys=[made.key.public]).version == 3


def test_what_a_killed_process_signed_is_deleted_by_the_next_move(
    made: SignedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.promote(1)

    def killed(self: Pointer, expected: object, value: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Pointer, "swap", killed)
        with pytest.raises(KeyboardInterrupt):
            made.promote(2)
    assert signatures(made) == names(0, 1)
    with pytest.raises(CorruptError, match="which is not in its history of 1"):
        prove(made.store, MODEL, keys=[made.key.public])
    made.promote(3)
    assert signatures(made) == names(0, 2)
    assert prove(made.store, MODEL, keys=[made.key.public]).version == 3


def test_a_move_is_made_if_an_answer_is_lost_or_nothing_can_be_deleted_after_it(
    made: SignedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is told otherwise believes that the champion is another."""
    create_once = Store.create_once
    monkeypatch.setattr(Store, "create_once", lambda *arguments: create_once(*arguments) and False)
    away = Mock(side_effect=StorageUnavailable("The store did not answer."))
    monkeypatch.setattr("infra.models.registry.withdraw_others", away)
    assert made.promote(1).version == 1
    assert prove(made.store, MODEL, keys=[made.key.public]).signed.receipts == 1
    assert away.called


def test_a_strange_signature_ends_the_move_and_one_that_is_gone_is_missed(made: SignedStore) -> None:
    strange = layout.signature(layout.receipt(MODEL, "champion", 0), "model.sig")
    made.store.create(strange, b"{}")
    with pytest.raises(CorruptError, match=r"model\.sig"):
        made.promote(1)
    assert registry.read_alias(made.store, MODEL, "champion") is None
    made.store.forget(strange)
    made.promote(2)
    newest = made.promote(3)
    for what in layout.SIGNATURES:
        made.store.forget(layout.signature(newest.ref.uri, what))
    with pytest.raises(CorruptError, match="is not signed, although receipts before it are"):
        made.promote(4)


def test_signatures_begin_in_the_middle_of_a_history_and_keys_change(
    made: SignedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, made.key = made.key, None
    monkeypatch.delenv(SIGNING_KEY)
    made.promote(1)
    new, _, _ = pair(tmp_path / "new")
    made.promote(2, key=old)
    made.promote(3, key=new)
    signed = prove(made.store, MODEL, keys=[old.public, new.public]).signed
    assert (signed.receipts, signed.before, signed.keys) == (2, 1, [new.public.id, old.public.id])
    with pytest.raises(CorruptError, match="not one of those given"):
        prove(made.store, MODEL, keys=[new.public])
    assert prove(made.store, f"{MODEL}@2", keys=[old.public, new.public]).version == 2
    with pytest.raises(CorruptError, match="No signed receipt"):
        prove(made.store, f"{MODEL}@1", keys=[old.public, new.public])
