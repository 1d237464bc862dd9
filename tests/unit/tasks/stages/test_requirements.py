"""`promote.require` is a policy: each requirement has its sentence, early where it can be known early."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import GateNotMet, UsageError
from data_contracts.handoffs import Dataset, Ref
from flows.cli import main
from infra.models import registry
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import PRIVATE_FILE, PUBLIC_FILE
from tasks.run.run import Run
from tasks.stages.approval import met_requirements, refuse_early, signing_key
from tests.support.commands import json_of
from tests.support.reseal import reseal
from tests.support.runs import make_run
from tests.support.signed import MODEL, SUITE, SignedStore, pair
from tests.support.tiny import SPEC

ALL = ["contract", "clean_commit"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SignedStore:
    monkeypatch.delenv(SIGNING_KEY, raising=False)
    return SignedStore(tmp_path, None)


def run_of(
    made: SignedStore, *require: str, sign: str | None = None, external: bool = False, canary: Any = None, **inputs: Any
) -> Run:
    spec = {**({} if external else SPEC), "promote": {"require": list(require), "sign": sign, "canary": canary}}
    return make_run(made.store, recorded=False, spec=spec, root=str(made.project), **{"commit": "c", **inputs})


def judged(made: SignedStore, *require: str) -> list[str]:
    made.promote(1)
    checkpoint = registry.read_version(made.store, MODEL, 1).checkpoint
    handoff = {"ref": made.dataset, "key": "d", "format": "parquet", "splits": {}, "columns": {}}
    return met_requirements(run_of(made, *require), checkpoint, Dataset.model_validate(handoff))


@pytest.mark.parametrize("require", [ALL, []])
def test_what_is_met_is_named(require: list[str], made: SignedStore) -> None:
    assert judged(made, *require) == require


@pytest.mark.parametrize(
    ("require", "about", "words"),
    [
        ("signed", {}, "asks for signed, and no key is configured"),
        ("contract", {"external": True}, "asks for contract, and the data is external"),
        ("clean_commit", {"dirty": True}, "and the project has changes that are not committed"),
        ("clean_commit", {"commit": None}, "and the project is not in a Git repository"),
        ("clean_commit", {"sign": "file:no-such-key"}, "promote.sign: the key file .* cannot be read"),
        ("clean_commit", {"canary": {"within": "14d", "metric": "accuracy"}}, "promote.canary is not carried out"),
    ],
)
def test_what_is_known_at_the_start_is_refused_there(
    require: str, about: dict[str, Any], words: str, made: SignedStore
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        refuse_early(run_of(made, require, **about))
    assert refused.value.remedy


BROKEN = {"expectation": "expect_column_to_exist", "column": "a", "severity": "critical", "rows": 1, "sentence": "x"}
WARNING = {"expectations": [{**SUITE["expectations"][0], "severity": "warning"}]}


@pytest.mark.parametrize(
    ("suite", "report", "words"),
    [
        (None, {}, "datasets/d-0 was made without one"),
        (WARNING, {}, "contracts/c-0 has no critical expectation"),
        ({"expectations": []}, {}, "contracts/c-0 has no critical expectation"),
        (SUITE, {"accepted": False}, "contracts/c-0 rejected the data"),
        (SUITE, {"failures": [BROKEN]}, "contracts/c-0 found that expect_column_to_exist is broken"),
    ],
)
def test_a_contract_that_says_too_little_is_not_enough(
    suite: dict[str, Any] | None, report: dict[str, Any], words: str, made: SignedStore
) -> None:
    """Another contract report is in the dataset's lineage."""
    folder = made.root / "contracts" / "c-0"
    handoff = {**json.loads((folder / "handoff.json").read_bytes()), **report}
    files = {"handoff.json": json.dumps(handoff).encode()}
    ref = reseal(made.root, "contracts/c-0", files, lambda settings: settings.update(suite=suite))
    parents = [ref.to_json()] if suite is not None else []
    made.dataset = reseal(made.root, "datasets/d-0", provenance=lambda about: about.update(parents=parents))
    with pytest.raises(GateNotMet, match=f"asks for contract, and {words}"):
        judged(made, "contract")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ({"commit": "c", "dirty": True}, "the training's project had changes that are not committed"),
        ({"commit": None, "dirty": False}, "the training's project was not in a Git repository"),
        ({}, "the training's project was not in a Git repository"),
    ],
)
def test_weights_from_uncommitted_code_stay_so(code: dict[str, Any], words: str, made: SignedStore) -> None:
    made.promote(1)
    checkpoint = registry.read_version(made.store, MODEL, 1).checkpoint
    ref: Ref = reseal(made.root, checkpoint.ref.uri, provenance=lambda about: about.update(code=code))
    with pytest.raises(GateNotMet, match=words):
        met_requirements(run_of(made, "clean_commit"), checkpoint.model_copy(update={"ref": ref}), None)


def test_the_spec_names_its_key(made: SignedStore, tmp_path: Path) -> None:
    key, _, _ = pair(tmp_path / "keys")
    assert signing_key(run_of(made, "signed", sign=f"file:{tmp_path}/keys/{PRIVATE_FILE}")) == key
    assert signing_key(run_of(made)) is None


def test_a_pair_of_keys_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    answer = json_of(capsys, "key", "new", str(folder), "--json")
    assert (answer["private"], answer["public"]) == (str(folder / PRIVATE_FILE), str(folder / PUBLIC_FILE))
    assert stat.S_IMODE((folder / PRIVATE_FILE).stat().st_mode) == 0o600
    assert (folder / PRIVATE_FILE).read_text().splitlines()[1] not in json.dumps(answer)
    assert main(["key", "new", str(folder)]) == 2
