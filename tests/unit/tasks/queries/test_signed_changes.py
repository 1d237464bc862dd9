"""A writer of the store without the key changes nothing that `prove --key` accepts: 300 changes, 10,000 with --sweep.

Each change is refused with an error of the tree, or it touches nothing that the proof reads: the proof is then equal.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from data_contracts.errors import TrainwrightError
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import PRIVATE_FILE
from infra.store import open_store
from tasks.queries.proof import prove
from tests.support.forgery import HISTORY, KINDS, POINTER, Forger
from tests.support.signed import MODEL, SignedStore, pair


@pytest.fixture
def grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SignedStore:
    """Two versions, a rollback and a release, all signed."""
    key, _, _ = pair(tmp_path / "keys")
    monkeypatch.setenv(SIGNING_KEY, str(tmp_path / "keys" / PRIVATE_FILE))
    made = SignedStore(tmp_path, key)
    made.promote(1)
    made.promote(2)
    made.back()
    made.release()
    return made


def is_irrelevant(path: str, forger: Forger) -> bool:
    """Whether a proof does not depend on a change: marks, the pointer's own counter, files beside receipts.

    Two receipts of one version have signatures of the same statement about its training and its files: such a
    signature may stand in the place of the other.
    """
    if path.startswith("uses/") or path.endswith(".verified") or path in (POINTER, ".gitignore", "store.json"):
        return True
    if not path.startswith(f"{HISTORY}/") or not path.endswith((".dsse", ".sig")):
        return False
    return path not in forger.files or payload((forger.root / path).read_bytes()) == payload(forger.files[path])


def payload(data: bytes) -> str:
    value = json.loads(data)
    return str(value.get("dsseEnvelope", value)["payload"])


def test_no_change_without_the_key_is_accepted(grown: SignedStore, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    count = 10_000 if pytestconfig.getoption("--sweep") else 300
    store, keys = open_store(str(grown.root)), [grown.key.public]
    expected = prove(store, MODEL, keys=keys).to_json()
    stranger, _, _ = pair(tmp_path / "stranger")
    forger = Forger(grown.root, stranger)
    refused: Counter[str] = Counter()
    equal: Counter[str] = Counter()
    for seed in range(count):
        kind, changed = forger.change(seed)
        try:
            proof = prove(store, MODEL, keys=keys)
        except TrainwrightError:
            refused[kind] += 1
        else:
            assert proof.to_json() == expected, f"seed {seed}, {kind}: {changed}"
            relevant = [path for path in changed if not is_irrelevant(path, forger)]
            assert not relevant, f"seed {seed}, {kind}: {relevant} changed, and nobody noticed"
            equal[kind] += 1
        forger.restore()
    print(f"refused {refused.total():,} of {count:,}: {dict(refused)}; nothing of the proof: {dict(equal)}")
    assert refused.total() > count / 2
    assert refused.keys() | equal.keys() == KINDS.keys()
    assert prove(store, MODEL, keys=keys).to_json() == expected
