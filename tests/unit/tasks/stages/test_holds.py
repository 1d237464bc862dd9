"""A rollback holds the checkpoint that it leaves: no run promotes it on that alias until a person releases it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.canonical import canonical
from data_contracts.errors import OnHold, UsageError
from data_contracts.handoffs import Receipt, Ref
from infra.models import registry
from infra.records.receipts import Holds
from infra.store import Store, Versioned, layout, open_store
from tasks.run.resolve import find_version
from tasks.stages.rollback import release, rollback
from tests.support.stored_checkpoints import stored_checkpoint
from tests.unit.tasks.stages.test_promote import Place
from tests.unit.tasks.stages.test_promote import place as place

ANN = {"run_id": "rollback-1", "actor": "ann", "finished": "2126-11-22T19:00:00+00:00"}
BOB = {"run_id": "release-1", "actor": "bob", "finished": "2126-11-23T09:00:00+00:00"}


@pytest.fixture
def small(tmp_path: Path) -> Store:
    """A store with three versions and nothing else; the alias names the third."""
    store = open_store(str(tmp_path / "store"))
    for n in (1, 2, 3):
        scores = Ref(uri="evaluations/e-0", id="e" * 64, seal="s" * 64)
        version = registry.write_version(store, "tiny", stored_checkpoint(store, n), scores, {}, {})
        found = registry.read_alias(store, "tiny", "champion")
        receipt = Receipt(decision="promoted", model="tiny", alias="champion", version=n, previous=n - 1 or None,
                          candidate=version.ref, sentence=f"tiny@champion is version {n}")  # fmt: skip
        registry.move_alias(store, found and found[0], version, receipt, {"run_id": f"r{n}"}, ())
    return store


def back(store: Store, to: int | None = None, reason: str = "", **about: Any) -> Receipt:
    return rollback(store, "tiny", "champion", to, {**ANN, **about}, reason)


def now(store: Store) -> tuple[int, list[int]]:
    """The version that the alias names, and those on hold."""
    found = registry.read_alias(store, "tiny", "champion")
    return found[1], [hold.version for hold in registry.holds(store, found[0])]


def test_a_run_of_a_checkpoint_that_was_rolled_back_is_refused_until_it_is_released(place: Place) -> None:
    for n in (1, 2):
        place.promoted(n)
    assert back(place.store, reason="recall fell").sentence == (
        'tiny@champion went back from version 2 to version 1: "recall fell"'
    )
    with pytest.raises(OnHold, match=r'ann rolled version 2 back at 2126-11-22 19:00 UTC \("recall fell"\)'):
        place.promoted(2, run_id="later")
    receipt = release(place.store, "tiny", "champion", 2, "the test set was wrong", BOB)
    assert receipt.sentence == (
        'tiny@champion stays version 1; version 2 was released from hold by bob: "the test set was wrong"'
    )
    assert place.now() == (1, [])
    assert place.promoted(2, run_id="later").sentence == "tiny@champion is version 2, was 1"
    assert place.now() == (2, [])


@pytest.mark.parametrize(
    ("moves", "ends", "held"),
    [
        ([None], 2, [3]),
        ([None, None], 1, [3, 2]),
        ([1], 1, [3]),
        ([None, None, 3], 3, [2, 1]),
        ([1, 3], 3, [1]),
        ([1, 3, None], 2, [1, 3]),
        ([None, 3, 2, 3], 3, [2]),
    ],
)
def test_the_version_that_is_left_is_held_and_the_one_that_is_named_is_not(
    small: Store, moves: list[int | None], ends: int, held: list[int]
) -> None:
    for move in moves:
        back(small, move)
    assert now(small) == (ends, held)


@pytest.mark.parametrize(
    ("which", "held", "words"),
    [
        (None, [], "Nothing is on hold for tiny@champion"),
        (2, [3], r"2 is not on hold for tiny@champion; on hold: version 3 \(checkpoint"),
        ("f" * 64, [3], "is not on hold"),
        ("", [3], "^--checkpoint: an empty id is not on hold"),
        (9, [3], "tiny has no version 9"),
        (None, [3, 2], r"more than one hold: version 3 .*; version 2"),
    ],
)
def test_a_release_without_a_hold_is_refused(
    small: Store, which: int | str | None, held: list[int], words: str
) -> None:
    for _ in held:
        back(small)
    with pytest.raises(UsageError, match=words):
        release(small, "tiny", "champion", which, "why", BOB)
    assert now(small)[1] == held


@pytest.mark.parametrize("reason", ["", " \n", "a\x00b", "x" * 501, "a\x1b[0m"])
def test_a_release_needs_a_reason_and_may_name_the_checkpoints_id(small: Store, reason: str) -> None:
    back(small)
    back(small)
    checkpoint = registry.read_version(small, "tiny", 3).checkpoint.ref.id[:16]
    with pytest.raises(UsageError, match="^--reason: "):
        release(small, "tiny", "champion", checkpoint, reason, BOB)
    release(small, "tiny", "champion", checkpoint, "why", BOB)
    assert now(small) == (1, [2])


def sealed_earlier(store: Store, expected: Versioned, receipt: Receipt, provenance: dict[str, Any], held: Holds) -> Ref:
    """A receipt as it was sealed before holds were kept."""
    model, alias = receipt.model, receipt.alias
    before = expected.value["receipt"]
    about = {"model": model, "alias": alias, "decision": receipt.decision, "version": receipt.version,
             "previous_receipt": before["id"]}  # fmt: skip
    k = len(store.list(layout.history(model, alias)))
    writer = store.writer(layout.receipt(model, alias, k))
    entry = writer.put("receipt.json", canonical(receipt.model_copy(update={"ref": None}).to_json()))
    return writer.seal("receipt", about, {**provenance, "previous_receipt": before, "alias_schema": 2}, files=[entry])


def test_an_earlier_rollback_is_recognised(small: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(registry, "_seal_next", sealed_earlier)
        for _ in range(2):
            back(small)
    assert now(small) == (1, [3, 2])
    with monkeypatch.context() as earlier:
        earlier.setattr(registry, "_seal_next", sealed_earlier)
        back(small, 3)
    assert now(small) == (3, [2, 1])
    back(small, 2)
    assert now(small) == (2, [1, 3])
    small.remove("models/tiny/3", why="test", by="test")
    assert now(small) == (2, [1, 3]), "the chain is not walked beyond the newest receipt that says what is held"


def test_one_receipt_is_read_however_long_the_chain_is(small: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for to in (1, 2, 3, 1, 2):
        back(small, to)
    verify = Mock(wraps=small.verify)
    monkeypatch.setattr(small, "verify", verify)
    assert now(small) == (2, [3, 1])
    assert verify.call_count == 1


def test_an_alias_of_a_canary_that_has_ended_names_nothing(small: Store) -> None:
    """As earlier versions left it."""
    version = registry.read_version(small, "tiny", 3)
    ended = Receipt(decision="ended", model="tiny", alias="champion", version=3, previous=3, candidate=version.ref,
                    sentence="it ended")  # fmt: skip
    current = registry.read_alias(small, "tiny", "champion")
    registry.move_alias(small, current[0], version, ended, {"run_id": "r4"}, ())
    with pytest.raises(UsageError, match=r"version 3 was the last\. Name a version: tiny@3\."):
        find_version(small, "tiny@champion")
    with pytest.raises(UsageError, match="the alias of a canary that has ended"):
        back(small)
