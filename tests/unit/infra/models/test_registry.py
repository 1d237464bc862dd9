"""Versions count up, aliases move by compare-and-set, and the history is exactly the moves that were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import CorruptError, StorageUnavailable
from data_contracts.handoffs import Checkpoint, ModelVersion, Receipt, Ref
from infra.models import registry
from infra.models.registry import (
    aliases,
    history,
    holds,
    move_alias,
    next_version,
    read_alias,
    read_version,
    write_version,
)
from infra.records.receipts import chain
from infra.store import Pointer, PointerMoved, Store, Versioned, layout, open_store
from infra.store.s3 import S3Backend
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.s3 import S3Server

HEX = "ab" * 32
EVALUATION = Ref(uri="evaluations/e-0", id=HEX, seal=HEX)


def champion(store: Store) -> Versioned:
    """The pointer as it is now."""
    found = read_alias(store, "digits", "champion")
    return found[0]


def checkpoint(n: int) -> Checkpoint:
    ref = Ref(uri=f"trainings/k-0/checkpoints/{n}-g0", id=f"{n:064x}", seal=HEX)
    return Checkpoint(ref=ref, key="k", training="trainings/k-0", step=n, epoch=1, generation=0, world_size=2)


def write(store: Store, n: int, **settings: object) -> ModelVersion:
    return write_version(store, "digits", checkpoint(n), EVALUATION, settings, {"actor": "me"})


def promote(
    store: Store, version: ModelVersion, expected: Versioned | None, previous: int | None, **about: str
) -> Receipt:
    receipt = Receipt(
        decision="promoted", model="digits", alias="champion", version=version.version, previous=previous, sentence="."
    )
    return move_alias(store, expected, version, receipt, {"actor": "me", **about}, holds(store, expected))


def promote_in_turn(store: Store, *versions: ModelVersion) -> list[Receipt]:
    """Move the alias to each of them."""
    made: list[Receipt] = []
    for version in versions:
        previous = made[-1].version if made else None
        made.append(promote(store, version, champion(store) if made else None, previous))
    return made


def test_versions_count_from_one(store: Store) -> None:
    assert next_version(store, "digits") == 1
    first, second = write(store, 10), write(store, 20)
    assert (first.version, second.version, next_version(store, "digits")) == (1, 2, 3)
    assert first.ref.uri == "models/digits/1"
    assert read_version(store, "digits", 1) == first
    assert read_version(store, "digits", 2) == second
    assert (second.name, second.checkpoint, second.evaluation) == ("digits", checkpoint(20), EVALUATION)
    manifest = store.verify(first.ref)
    assert manifest.kind == "model"
    assert manifest.settings == {
        "name": "digits", "version": 1, "checkpoint_id": f"{10:064x}", "evaluation_id": HEX,
    }  # fmt: skip
    assert manifest.provenance == {
        "actor": "me", "checkpoint": checkpoint(10).to_json(), "evaluation": EVALUATION.to_json(),
    }  # fmt: skip
    with pytest.raises(FileNotFoundError):
        read_version(store, "digits", 3)


def test_a_number_is_used_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(store, 10, precision="bf16")
    assert write(store, 10, precision="bf16") == first, "a promotion that is repeated makes no second version"
    assert write(store, 10, precision="32").version == 2
    assert write(store, 10, precision="bf16").version == 3, "only the newest is looked at"
    with monkeypatch.context() as patched:
        patched.setattr(registry, "next_version", lambda store, name: 1)
        assert write(store, 30).version == 4, "numbers that others took are passed"
        assert write(store, 10, precision="bf16") == first, "the same content: the winner's is ours"
    store.remove("models/digits/4", why="too old", by="me")
    assert next_version(store, "digits") == 5


FORGED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no checkpoint": ({}, {"evaluation": EVALUATION.to_json()}, "is not the record that belongs there"),
    "a text": ({}, {"checkpoint": "none", "evaluation": EVALUATION.to_json()}, "is not the record that belongs there"),
    "no ids": (
        {"name": "digits"},
        {"checkpoint": checkpoint(10).to_json(), "evaluation": EVALUATION.to_json()},
        "is not the record that belongs there",
    ),
    "another id": (
        {"name": "digits", "version": 1, "checkpoint_id": HEX, "evaluation_id": HEX},
        {"checkpoint": checkpoint(10).to_json(), "evaluation": EVALUATION.to_json()},
        "names one checkpoint",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_version_of_another_form_is_named(store: Store, case: str) -> None:
    settings, provenance, sentence = FORGED[case]
    store.writer("models/digits/1").seal("model", settings, provenance, [])
    with pytest.raises(CorruptError, match=rf"^models/digits/1/manifest\.json {sentence}") as raised:
        read_version(store, "digits", 1)
    assert raised.value.details == {"file": "models/digits/1/manifest.json"}


@pytest.mark.parametrize("provenance", [{}, {"previous_receipt": "none"}])
def test_a_receipt_of_another_form_is_named(store: Store, provenance: dict) -> None:
    sealed = store.writer("aliases/digits/history/champion/0").seal("receipt", {}, provenance, [])
    with pytest.raises(CorruptError, match=r"history/champion/0/manifest\.json is not the record that belongs there"):
        list(chain(store, sealed))


def test_an_alias_moves_and_its_receipts_are_kept(any_store: Store) -> None:
    store = any_store
    assert read_alias(store, "digits", "champion") is None
    assert history(store, "digits", "champion") == []
    first, second = write(store, 10), write(store, 20)
    receipts = promote_in_turn(store, first, second, first, second)  # with a rollback
    assert read_alias(store, "digits", "champion") == (champion(store), 2)
    assert champion(store).value == {
        "version": 2, "model_version": second.ref.to_json(), "receipt": receipts[-1].ref.to_json(),
    }  # fmt: skip
    assert history(store, "digits", "champion") == receipts
    assert [receipt.ref.uri for receipt in receipts] == [f"aliases/digits/history/champion/{k}" for k in range(4)]
    assert [receipt.previous for receipt in receipts] == [None, 1, 2, 1]
    assert len({receipt.ref.id for receipt in receipts}) == 4, "equal receipts of different moves are kept apart"
    manifest = store.verify(receipts[1].ref)
    assert manifest.kind == "receipt"
    assert manifest.provenance == {
        "actor": "me", "previous_receipt": receipts[0].ref.to_json(), "alias_schema": 2,
    }  # fmt: skip
    assert manifest.settings == {
        "model": "digits", "alias": "champion", "decision": "promoted", "version": 2,
        "previous_receipt": receipts[0].ref.id,
    }  # fmt: skip
    with pytest.raises(PointerMoved) as raised:
        promote(store, second, None, None)
    assert raised.value.current == champion(store)
    assert store.list("aliases/digits/history/champion") == ["0", "1", "2", "3"], "a late move is not even sealed"


def test_all_aliases(store: Store) -> None:
    assert aliases(store) == []
    promote(store, write(store, 10), None, None)
    named = champion(store).value
    store.pointer("aliases/digits/challenger").create({**named, "version": 7})
    store.pointer("aliases/gpt/champion").create({**named, "version": 3})
    listed = [("digits", "challenger", 7), ("digits", "champion", 1), ("gpt", "champion", 3)]
    assert aliases(store) == listed
    for stray in ("digits/Bad Name", "Bad Model/champion"):
        path = Path(store.uri, "aliases", stray)
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    assert aliases(store) == listed, "what Trainwright did not make is passed over"


def test_a_move_that_loses_after_its_receipt_is_not_in_the_history(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write(store, 10), write(store, 20)
    promoted = promote(store, first, None, None)
    held = champion(store)
    seal = registry._seal_next
    others: list[Receipt] = []

    def other_is_faster(*arguments: object) -> Ref:
        monkeypatch.setattr(registry, "_seal_next", seal)
        sealed = seal(*arguments)
        others.append(promote(store, second, held, 1))
        return sealed

    monkeypatch.setattr(registry, "_seal_next", other_is_faster)
    with pytest.raises(PointerMoved):
        promote(store, write(store, 30), held, 1)
    assert history(store, "digits", "champion") == [promoted, *others]
    assert store.list("aliases/digits/history/champion") == ["0", "1", "2"]


@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_is_settled_by_the_chain(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The move was made, its answer was lost, and another writer moved the alias before we looked."""
    proxy = FaultProxy(s3_server.url)
    uri = f"s3://{s3_server.bucket()}/prefix"
    past, near = open_store(uri, s3_server.options), open_store(uri, {**s3_server.options, "endpoint_url": proxy.url})
    first, second, third = (write(past, n) for n in (10, 20, 30))
    promote(past, first, None, None)
    held = champion(past)
    landed = S3Backend._landed

    def overtaken(backend: S3Backend, path: str, nonce: str) -> str:
        monkeypatch.setattr(S3Backend, "_landed", landed)
        if after:
            promote(past, third, champion(past), 2)
        return landed(backend, path, nonce)

    monkeypatch.setattr(S3Backend, "_landed", overtaken)
    fault = Fault("lose", "PUT", "aliases/digits/champion", times=2)
    proxy.faults.append(fault)
    try:
        receipt = promote(near, second, held, 1)
    finally:
        proxy.stop()
    assert fault.fired
    assert [one.version for one in history(past, "digits", "champion")] == ([1, 2, 3] if after else [1, 2])
    assert receipt.sentence == (".; it was moved again since and is version 3 now" if after else ".")


def test_a_move_that_a_server_let_others_overwrite_is_not_in_the_chain(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ignores a condition, and another move follows before we read ours back."""
    near = open_store(f"s3://{s3_server.bucket()}/prefix", s3_server.options)
    others = open_store(near.uri, s3_server.options)
    first, ours, theirs, last = (write(near, n) for n in (10, 20, 30, 40))
    promote(near, first, None, None)
    held, head, read = champion(near), near._backend._head, Pointer.read

    def overtaken(path: str) -> object:
        if path.endswith("/champion"):
            monkeypatch.setattr(near._backend, "_head", head)
            s3_server.fault("ignore", method="PUT", match="aliases/digits/champion")
            with monkeypatch.context() as patch:
                patch.setattr(Pointer, "read", lambda one: held if one.path == "aliases/digits/champion" else read(one))
                promote(others, theirs, held, None)
            promote(others, last, champion(others), None)
        return head(path)

    monkeypatch.setattr(near._backend, "_head", overtaken)
    with pytest.raises(PointerMoved):
        promote(near, ours, held, 1)
    s3_server.clear()
    assert [one.version for one in history(near, "digits", "champion")] == [1, 3, 4]


def test_an_unknown_outcome_is_not_reported_as_a_failure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    promoted = promote_in_turn(store, write(store, 10))
    second, held, swap = write(store, 20), champion(store), Pointer.swap

    def away(*_: object) -> None:
        raise StorageUnavailable("away")

    def moved_and_away(pointer: Pointer, expected: Versioned | None, value: object) -> Versioned:
        swap(pointer, expected, value)
        monkeypatch.setattr(Pointer, "read", away)
        raise StorageUnavailable("away")

    unknown = r"moved; it is unknown whether the alias was moved.*try again"
    with monkeypatch.context() as monkeypatch:
        for swapped in (away, moved_and_away):
            monkeypatch.setattr(Pointer, "swap", swapped)
            with pytest.raises(StorageUnavailable, match=unknown):
                promote(store, second, held, 1)
    assert [one.version for one in history(store, "digits", "champion")] == [promoted[0].version, 2]


def test_what_an_alias_names_must_be_there(store: Store) -> None:
    version = write(store, 10)
    first, _ = promote_in_turn(store, version, write(store, 20))
    store.remove(first.ref.uri, why="test", by="test")
    with pytest.raises(CorruptError, match=r"^aliases/digits/history/champion/0/manifest\.json, which .* is missing"):
        history(store, "digits", "champion")
    store.remove(version.ref.uri, why="test", by="test")
    with pytest.raises(CorruptError, match=r"^models/digits/1/manifest\.json, which .* is missing"):
        registry.model_version(store, version.ref)
    Path(store.uri, "aliases", "digits", "champion").unlink()
    for ask in (lambda: read_alias(store, "digits", "champion"), lambda: aliases(store)):
        with pytest.raises(CorruptError, match="aliases/digits/champion is missing, although receipt 1 of its history"):
            ask()


@pytest.mark.parametrize("lie", ["receipt.json", "manifest.json"])
def test_a_changed_receipt_is_named(store: Store, lie: str) -> None:
    receipt = promote(store, write(store, 10), None, None)
    path = f"{receipt.ref.uri}/{lie}"
    data = store.read(path)
    store._backend.delete(path)
    store.create(path, data.replace(b"promoted", b"demoted!"))
    with pytest.raises(CorruptError, match=path):
        history(store, "digits", "champion")


def test_who_moved_an_alias_last_is_read_in_one_receipt(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.newest_mover(store, "digits", "champion") == ""
    promote(store, write(store, 1), None, None, run_id="run-1")
    promote(store, write(store, 2), champion(store), 1, run_id="run-2")
    manifest = Mock(side_effect=store.manifest)
    monkeypatch.setattr(store, "manifest", manifest)
    assert registry.newest_mover(store, "digits", "champion") == "run-2"
    assert manifest.call_count == 1


def test_receipts_of_moves_that_lost_do_not_make_an_alias(store: Store) -> None:
    write(store, 10)
    store.writer(layout.receipt("digits", "champion", 0)).seal("receipt", {}, {"previous_receipt": None}, files=[])
    store.writer(layout.receipt("digits", "champion", 1)).put("receipt.json", b"killed before it was sealed")
    assert read_alias(store, "digits", "champion") is None
    assert aliases(store) == []
    promote(store, write(store, 20), None, None)
    assert [one.ref.uri for one in history(store, "digits", "champion")] == ["aliases/digits/history/champion/2"]
