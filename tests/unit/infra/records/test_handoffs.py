"""A hand-off is read as it was put; what is none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Evaluation, Ref
from infra.records.handoffs import put_handoff, read_handoff
from infra.store import Store, open_store
from tests.support.damage import overwrite

FIELDS = {
    "schema_version": 1,
    "key": "k",
    "checkpoint_id": "ab" * 32,
    "dataset_ids": {"test": "cd" * 32},
    "metrics": {},
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def sealed(store: Store, name: str, data: bytes) -> Ref:
    writer = store.writer("evaluations/k-0")
    writer.put(name, data)
    return writer.seal("evaluation", {}, {})


def test_what_is_put_is_read(store: Store) -> None:
    writer = store.writer("evaluations/k-0")
    put_handoff(writer, FIELDS)
    ref = writer.seal("evaluation", {}, {})
    assert read_handoff(store, ref, Evaluation) == Evaluation.from_json({**FIELDS, "ref": ref.to_json()})


NOT_ONE = [
    ("handoff.json", b"{", "is not JSON"),
    ("handoff.json", b"[]", "is not the hand-off Evaluation"),
    ("handoff.json", b'{"key": 1}', "is not the hand-off Evaluation"),
    ("handoff.json", b'{"splits": {"train": [{}]}}', "is not the hand-off Evaluation"),
    ("other.json", b"{}", "is missing"),
]


@pytest.mark.parametrize(("name", "data", "sentence"), NOT_ONE)
def test_what_is_no_hand_off_is_named(name: str, data: bytes, sentence: str, store: Store) -> None:
    with pytest.raises(CorruptError, match=rf"^evaluations/k-0/handoff\.json {sentence}\.") as raised:
        read_handoff(store, sealed(store, name, data), Evaluation)
    assert raised.value.details == {"file": "evaluations/k-0/handoff.json"}


def test_what_was_changed_after_it_was_sealed_is_not_believed(store: Store) -> None:
    ref = sealed(store, "handoff.json", canonical(FIELDS))
    path = Path(store.uri) / ref.uri / "handoff.json"
    overwrite(path, canonical({**FIELDS, "checkpoint_id": "ef" * 32}))
    with pytest.raises(CorruptError, match=r"^evaluations/k-0/handoff\.json is not what was sealed\."):
        read_handoff(store, ref, Evaluation)


def test_a_hand_off_of_another_reuse_key_is_not_believed(store: Store) -> None:
    ref = sealed(store, "handoff.json", canonical({**FIELDS, "key": "other"}))
    with pytest.raises(CorruptError, match="is the hand-off of another reuse key"):
        read_handoff(store, ref, Evaluation)
