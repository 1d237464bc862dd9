"""What `prove --key` accepts: the newest signed receipt, all signed since the first, and each as it was signed."""

from __future__ import annotations

import json
import shutil

import pytest

from data_contracts.errors import CorruptError, UsageError
from flows.cli import main
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import PRIVATE_FILE
from infra.store import layout
from infra.store.records import write_record
from tasks.queries.proof import checked_seal, prove
from tests.support.commands import output_of
from tests.support.damage import overwrite
from tests.support.signed import MODEL, SignedStore, pair

HISTORY = layout.history(MODEL, "champion")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> SignedStore:
    """Two promotions, a rollback and a release, all signed; the state after each is kept as `after-<n>`."""
    folder = tmp_path_factory.mktemp("signed")
    key, _, _ = pair(folder / "keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SIGNING_KEY, str(folder / "keys" / PRIVATE_FILE))
        made = SignedStore(folder, key)
        steps = [lambda: made.promote(1), lambda: made.promote(2), made.back, made.release]
        for number, step in enumerate(steps):
            step()
            shutil.copytree(made.root, folder / f"after-{number}")
    return made


@pytest.fixture
def made(grown: SignedStore) -> SignedStore:
    """The store as it was grown."""
    shutil.rmtree(grown.root)
    shutil.copytree(grown.root.parent / "after-3", grown.root)
    return grown


def test_the_proof_says_who_signed_and_what_to_keep(made: SignedStore) -> None:
    seals = [made.store.manifest(f"{HISTORY}/{k}").seal for k in range(4)]
    about = {"alias": "champion", "receipts": 4, "before": 0, "keys": [made.key.public.id], "seal": seals[-1]}
    assert prove(made.store, MODEL, keys=[made.key.public]).to_json()["signed"] == {**about, "approvals": []}
    for seal in (*seals, seals[0][:16]):
        prove(made.store, MODEL, keys=[made.key.public], at_least=seal)
    assert "signed" not in prove(made.store, MODEL).to_json()


def test_the_receipts_of_another_alias_are_not_the_champions(made: SignedStore) -> None:
    """Another alias's pointer, with receipts of its own, under the champion's name: everything is signed.

    Changes without the key are in test_signed_changes.py.
    """
    made.promote(3, "canary")
    path = layout.alias(MODEL, "champion")
    value = json.loads((made.root / layout.alias(MODEL, "canary")).read_bytes())["value"]
    overwrite(made.root / path, write_record(path, {"schema": 2, "value": value, "version": 9}))
    with pytest.raises(CorruptError, match="leads to receipts of another alias"):
        prove(made.store, MODEL, keys=[made.key.public])


def test_only_a_kept_seal_finds_a_whole_older_store(made: SignedStore, capsys: pytest.CaptureFixture[str]) -> None:
    kept = made.store.manifest(f"{HISTORY}/3").seal
    shutil.rmtree(made.root)
    shutil.copytree(made.root.parent / "after-1", made.root)
    public = str(made.root.parent / "keys" / "signing-key.pub.pem")
    arguments = ["prove", MODEL, "--store", str(made.root), "--key", public]
    assert "signed: 2 receipts of tiny@champion" in output_of(capsys, *arguments)
    assert "an older store was put back" in output_of(capsys, *arguments, "--at-least", kept, code=6)
    assert main(["prove", MODEL, "--store", str(made.root), "--at-least", kept]) == 6
    assert main([*arguments, "--at-least", "abc"]) == 2
    assert main(["prove", MODEL, "--store", str(made.root), "--key", str(made.root / "no.pem")]) == 2


def test_a_version_is_proven_by_an_alias_that_named_it(made: SignedStore) -> None:
    assert prove(made.store, f"{MODEL}@2", keys=[made.key.public]).signed.alias == "champion"
    (made.root / HISTORY / "3.receipt.dsse").unlink()
    with pytest.raises(CorruptError, match="is not signed"):
        prove(made.store, f"{MODEL}@2", keys=[made.key.public])


@pytest.mark.parametrize("seal", ["", "abc", "G" * 64, "a" * 65, "../" + "a" * 61])
def test_what_is_not_a_seal(seal: str) -> None:
    with pytest.raises(UsageError, match="is not a receipt's seal"):
        checked_seal(seal)
