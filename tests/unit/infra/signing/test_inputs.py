"""A run continues with the inputs that the release key signed, and with no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, TrainwrightError, UsageError
from data_contracts.resolved import Resolved
from infra.signing.keys import SigningKey
from infra.signing.signatures import refuse_unsigned_inputs, sign_inputs
from infra.store import Store, layout
from tests.support.signed import pair


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[SigningKey]:
    folder = tmp_path_factory.mktemp("keys")
    return [pair(folder / str(n))[0] for n in range(2)]


@pytest.fixture
def resolved(repository: Path) -> Resolved:
    golden = json.loads((repository / "tests" / "golden" / "handoffs-v1.json").read_text())["Resolved"]
    return Resolved.from_json({**golden, "run_id": "r1"})


def spec_with(resolved: Resolved, **promote: Any) -> Resolved:
    spec = {**resolved.spec, "promote": {**resolved.spec.get("promote", {}), **promote}}
    return resolved.model_copy(update={"spec": spec})


def test_what_was_signed_continues(store: Store, resolved: Resolved, keys: list[SigningKey]) -> None:
    sign_inputs(store, resolved, keys[0])
    again = Resolved.from_json(json.loads(json.dumps(resolved.to_json())))
    refuse_unsigned_inputs(store, again, keys[0])
    assert again == resolved


CHANGES: dict[str, dict[str, Any]] = {
    "no gates": {"gates": []},
    "no approval": {"approval": "none"},
    "approvers of one's own": {"approvers": ["file:/tmp/mallory.pub.pem"]},
    "another alias": {"alias": "live"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_writer_of_the_store_changes_no_input(
    store: Store, resolved: Resolved, keys: list[SigningKey], change: str
) -> None:
    before = spec_with(resolved, approval="manual", gates=[{"metric": "accuracy", "min": 0.9}])
    sign_inputs(store, before, keys[0])
    with pytest.raises(CorruptError, match=r"runs/r1/resolved\.json is not what was signed"):
        refuse_unsigned_inputs(store, spec_with(before, **CHANGES[change]), keys[0])


def test_the_signature_of_another_run_or_key_is_none(store: Store, resolved: Resolved, keys: list[SigningKey]) -> None:
    with pytest.raises(UsageError, match="The inputs of the run r1 were not signed"):
        refuse_unsigned_inputs(store, resolved, keys[0])
    other = resolved.model_copy(update={"run_id": "r2"})
    sign_inputs(store, other, keys[0])
    store.create(layout.inputs_signature("r1"), store.read(layout.inputs_signature("r2")))
    with pytest.raises(CorruptError, match="is not what was signed"):
        refuse_unsigned_inputs(store, resolved, keys[0])
    with pytest.raises(TrainwrightError, match="is signed by the key"):
        refuse_unsigned_inputs(store, other, keys[1])
