"""A hand-off is read as it was put; what is none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Evaluation
from infra.records.handoffs import read_handoff
from infra.store import Store
from tests.support.damage import overwrite

FIELDS = {
    "schema_version": 1,
    "key": "k",
    "checkpoint_id": "ab" * 32,
    "dataset_ids": {"test": "cd" * 32},
    "metrics": {},
}


NOT_ONE = [
    ("handoff.json", b"{", "is not JSON"),
    ("handoff.json", b"[]", "is not the hand-off Evaluation"),
    ("handoff.json", b'{"key": 1}', "is not the hand-off Evaluation"),
    ("handoff.json", b'{"splits": {"train": [{}]}}', "is not the hand-off Evaluation"),
    ("handoff.json", canonical({**FIELDS, "key": "other"}), "is the hand-off of another reuse key"),
    ("other.json", b"{}", "is missing"),
    ("changed", canonical(FIELDS), "is not what was sealed"),
]


@pytest.mark.parametrize(("name", "data", "sentence"), NOT_ONE)
def test_what_is_no_hand_off_is_named(name: str, data: bytes, sentence: str, store: Store) -> None:
    writer = store.writer("evaluations/k-0")
    writer.put("other.json" if name == "other.json" else "handoff.json", data)
    ref = writer.seal("evaluation", {}, {})
    if name == "changed":
        assert read_handoff(store, ref, Evaluation) == Evaluation.from_json({**FIELDS, "ref": ref.to_json()})
        overwrite(Path(store.uri) / ref.uri / "handoff.json", data.replace(b"cd", b"ef"))
    with pytest.raises(CorruptError, match=rf"^evaluations/k-0/handoff\.json {sentence}") as raised:
        read_handoff(store, ref, Evaluation)
    assert raised.value.details == {"file": "evaluations/k-0/handoff.json"}
