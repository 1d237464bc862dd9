"""What `prove --key` accepts: the newest signed receipt, all signed since the first, and each as it was signed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest

from data_contracts.errors import CorruptError, UsageError
from flows.cli import main
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import PRIVATE_FILE
from infra.store import layout
from infra.store.records import write_record
from tasks.queries.proof import checked_seal, prove
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


def point(made: SignedStore, receipt: int, version: int) -> None:
    """Let the alias name an older receipt and version, with a digest that is right."""
    path = layout.alias(MODEL, "champion")
    manifests = [made.store.manifest(uri) for uri in (f"{HISTORY}/{receipt}", layout.model(MODEL, version))]
    value = {"model_version": manifests[1].ref.to_json(), "receipt": manifests[0].ref.to_json(), "version": version}
    overwrite(made.root / path, write_record(path, {"schema": 2, "value": value, "version": 9}))


def test_the_proof_says_who_signed_and_what_to_keep(made: SignedStore) -> None:
    proof = prove(made.store, MODEL, keys=[made.key.public])
    seals = [made.store.manifest(f"{HISTORY}/{k}").seal for k in range(4)]
    signed = proof.to_json()["signed"]
    keys = [made.key.public.id]
    about = {"alias": "champion", "receipts": 4, "before": 0, "keys": keys, "seal": seals[-1], "approvals": []}
    assert signed == about
    for seal in (*seals, seals[0][:16]):
        prove(made.store, MODEL, keys=[made.key.public], at_least=seal)
    assert "signed" not in prove(made.store, MODEL).to_json()


def back(receipt: int, version: int) -> Callable[[SignedStore], None]:
    return lambda made: point(made, receipt, version)


def without(*names: str) -> Callable[[SignedStore], None]:
    def removed(made: SignedStore) -> None:
        for name in names:
            (made.root / HISTORY / name).unlink()

    return removed


def swapped(one: str, other: str) -> Callable[[SignedStore], None]:
    def done(made: SignedStore) -> None:
        a, b = made.root / HISTORY / one, made.root / HISTORY / other
        first, second = a.read_bytes(), b.read_bytes()
        a.unlink(), b.unlink()
        a.write_bytes(second)
        b.write_bytes(first)

    return done


def copied_alias(made: SignedStore) -> None:
    """Another alias's pointer, with receipts of its own, under the champion's name."""
    made.promote(3, "canary")
    path = layout.alias(MODEL, "champion")
    value = json.loads((made.root / layout.alias(MODEL, "canary")).read_bytes())["value"]
    overwrite(made.root / path, write_record(path, {"schema": 2, "value": value, "version": 9}))


ATTACKS: dict[str, tuple[Callable[[SignedStore], None], str]] = {
    "back to the first receipt": (back(0, 1), "is the signature of receipt"),
    "back to an older champion": (back(1, 2), "is the signature of receipt"),
    "another version than the receipt's": (back(3, 2), "does not name what its newest receipt names"),
    "no signature of the newest": (without("3.receipt.dsse"), "champion/3 is not signed"),
    "no signature of an older one": (without("1.receipt.dsse"), "champion/1 is not signed"),
    "no provenance": (without("2.provenance.dsse"), "2.provenance.dsse is missing"),
    "no signature of the model": (without("0.model.sig"), "0.model.sig is missing"),
    "receipts swapped": (swapped("2.receipt.dsse", "3.receipt.dsse"), "is the signature of something else"),
    "models swapped": (swapped("0.model.sig", "1.model.sig"), "is the signature of something else"),
    "another kind": (swapped("3.provenance.dsse", "3.receipt.dsse"), "receipt.dsse"),
    "another alias": (copied_alias, "leads to receipts of another alias"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_without_the_key_is_found(attack: str, made: SignedStore) -> None:
    act, words = ATTACKS[attack]
    act(made)
    with pytest.raises(CorruptError, match=words):
        prove(made.store, MODEL, keys=[made.key.public])


def test_only_a_kept_seal_finds_a_whole_older_store(made: SignedStore, capsys: pytest.CaptureFixture[str]) -> None:
    kept = made.store.manifest(f"{HISTORY}/3").seal
    shutil.rmtree(made.root)
    shutil.copytree(made.root.parent / "after-1", made.root)
    public = str(made.root.parent / "keys" / "signing-key.pub.pem")
    arguments = ["prove", MODEL, "--store", str(made.root), "--key", public]
    assert main(arguments) == 0
    assert "signed: 2 receipts of tiny@champion" in capsys.readouterr().out
    assert main([*arguments, "--at-least", kept]) == 6
    assert "an older store was put back" in capsys.readouterr().err
    assert main(["prove", MODEL, "--store", str(made.root), "--at-least", kept]) == 6
    assert main([*arguments, "--at-least", "abc"]) == 2
    assert main(["prove", MODEL, "--store", str(made.root), "--key", str(made.root / "no.pem")]) == 2


def test_a_version_is_proven_by_an_alias_that_named_it(made: SignedStore) -> None:
    assert prove(made.store, f"{MODEL}@2", keys=[made.key.public]).signed.alias == "champion"
    without("3.receipt.dsse")(made)
    with pytest.raises(CorruptError, match="is not signed"):
        prove(made.store, f"{MODEL}@2", keys=[made.key.public])


@pytest.mark.parametrize("seal", ["", "abc", "G" * 64, "a" * 65, "../" + "a" * 61])
def test_what_is_not_a_seal(seal: str) -> None:
    with pytest.raises(UsageError, match="is not a receipt's seal"):
        checked_seal(seal)
