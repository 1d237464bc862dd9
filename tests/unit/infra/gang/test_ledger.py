"""The ledger of committed checkpoints: what is resumed from, kept and handed over, and who may move it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, Fenced, StorageUnavailable, UsageError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Retries
from data_contracts.pipeline_spec.train import SelectSpec
from infra.gang.ledger import Ledger, committed
from infra.gang.rank_files import FIELD
from infra.store import Store, Versioned, layout
from tests.support.conducting import losing_answers
from tests.support.damage import overwrite
from tests.support.refusals import refusal
from tests.support.scripted_nodes import TRAINING, seal


def spoil(store: Store, checkpoint: Checkpoint) -> None:
    overwrite(Path(store.uri) / checkpoint.ref.uri / "state.json", b"other")


def ledger_of(store: Store, *steps: int, token: int = 0) -> Ledger:
    ledger = Ledger(store, TRAINING, token)
    for step in steps:
        assert ledger.commit(seal(store, step))
    return ledger


def away(*_: Any, **__: Any) -> None:
    raise StorageUnavailable("the store is away.")


def kept(store: Store, token: int = 9) -> list[int]:
    return [checkpoint.step for checkpoint in Ledger(store, TRAINING, token).checkpoints]


def test_a_checkpoint_is_committed_once_and_outlives_its_conductor(store: Store) -> None:
    ledger = ledger_of(store, 5, 10)
    assert not ledger.commit(ledger.checkpoints[0])
    assert not ledger.commit(seal(store, 7)), "older than what is committed: it was retired before"
    later = Ledger(store, TRAINING, 1)
    assert later.checkpoints == ledger.checkpoints
    assert later.newest == later.resume_from() == ledger.checkpoints[1]
    assert Ledger(store, "trainings/other-0", 0).resume_from() is None
    again = seal(store, 10, generation=1)
    assert again.ref.id == ledger.checkpoints[1].ref.id
    assert later.commit(again), "the same content from another generation is another checkpoint"


def test_what_is_not_sealed_as_reported_is_not_committed(store: Store) -> None:
    ledger = Ledger(store, TRAINING, 0)
    checkpoint = seal(store, 5)
    wrong = checkpoint.model_copy(update={"ref": checkpoint.ref.model_copy(update={"seal": "0" * 64})})
    with pytest.raises(CorruptError, match="is not the one that the reference names"):
        ledger.commit(wrong)
    unsealed = checkpoint.ref.model_copy(update={"uri": layout.checkpoint(TRAINING, 6, 0)})
    with pytest.raises(CorruptError, match="6-g0 was reported as a checkpoint, but is not sealed"):
        ledger.commit(checkpoint.model_copy(update={"ref": unsealed, "step": 6}))
    assert ledger.checkpoints == []
    assert kept(store) == []


# committed steps, the move, the steps afterwards
MOVES: dict[str, tuple[list[int], Callable[[Store, Ledger], Any], list[int]]] = {
    "a commit": ([5], lambda store, ledger: ledger.commit(seal(store, 10)), [5, 10]),
    "going back": ([5, 10, 15], lambda store, ledger: ledger.go_back(10, by="test"), [5, 10]),
}


@pytest.mark.parametrize("case", MOVES)
def test_a_move_whose_answer_was_lost_is_not_mistaken_for_anothers(
    case: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, move, after = MOVES[case]
    ledger = ledger_of(store, *before)
    with losing_answers(ledger, monkeypatch), pytest.raises(StorageUnavailable):
        move(store, ledger)
    assert [checkpoint.step for checkpoint in ledger.checkpoints] == before
    move(store, ledger)
    assert ledger.commit(seal(store, 20))
    assert kept(store) == [*after, 20]
    assert [step for step, _ in aside(store)] == [step for step in before if step not in after]


def test_two_take_over_at_once_and_the_higher_token_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger_of(store, 5)
    raced = [True]

    class Racing(Ledger):
        def _value(self, *arguments: Any) -> dict[str, Any]:
            if raced and raced.pop():
                Ledger(self.store, self.training, self.token - 1)
            return super()._value(*arguments)

    late = Racing(store, TRAINING, 3)
    assert (late.token, [checkpoint.step for checkpoint in late.checkpoints]) == (3, [5])
    with pytest.raises(Fenced):
        Ledger(store, TRAINING, 2)


def test_an_older_conductor_can_move_nothing(store: Store) -> None:
    old = ledger_of(store, 5, 10, 15)
    new = Ledger(store, TRAINING, 1)
    for move in (
        lambda: old.commit(seal(store, 20)),
        lambda: old.retire(1, None, by="old"),
        lambda: old.hand_over(old.checkpoints[-1]),
        lambda: old.record_recovery([(0, 8)], Retries()),
        lambda: old.adopt(0, [seal(store, 25)]),
        lambda: old.go_back(5, by="old"),
        lambda: Ledger(store, TRAINING, 0),
    ):
        with pytest.raises(Fenced, match="taken over by another conductor"):
            move()
    assert all(store.verify(checkpoint.ref) for checkpoint in new.checkpoints)
    new.record_recovery([(8, 16)], Retries())
    assert new.commit(seal(store, 20, generation=1))
    assert (kept(store), aside(store)) == ([5, 10, 15, 20], [])
    assert (Ledger(store, TRAINING, 9).skipped, Ledger(store, TRAINING, 9).handed_over) == ([(8, 16)], None)


def test_a_move_that_loses_twice_is_fenced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a move of its own, whose answer was lost, another takes over before the next try."""
    old = ledger_of(store, 5)
    real, before = (
        old._pointer.swap,
        [lambda held, value: Ledger(store, TRAINING, 1), store.pointer(old._pointer.path).swap],
    )

    def raced(expected: Versioned | None, value: Any) -> Versioned:
        before.pop()(expected, value)
        return real(expected, value)

    monkeypatch.setattr(old._pointer, "swap", raced)
    with pytest.raises(Fenced, match="taken over by another conductor"):
        old.hand_over(old.checkpoints[0])


def test_what_was_retired_is_deleted_in_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the store goes away or the conductor dies in between."""
    ledger = ledger_of(store, 5, 10, 15)

    def there() -> list[int]:
        return [s for s in (5, 10, 15, 20) if store.exists(layout.manifest(layout.checkpoint(TRAINING, s, 0)))]

    with monkeypatch.context() as patch:
        patch.setattr(store, "remove", away)
        with pytest.raises(StorageUnavailable):
            ledger.retire(2, None, by="test")
        assert there() == [5, 10, 15]
        ledger.commit(seal(store, 20))
        with pytest.raises(StorageUnavailable):
            ledger.retire(2, None, by="test")
    taken_over = Ledger(store, TRAINING, 1)
    assert there() == [5, 10, 15, 20]
    taken_over.delete_retired(by="test")
    assert there() == kept(store) == [15, 20]
    taken_over = Ledger(store, TRAINING, 9)
    taken_over.retire(1, None, by="test")
    taken_over.record_recovery([(0, 8)], Retries())
    assert there() == [20]
    assert store.pointer(layout.latest(TRAINING)).read().value["retiring"] == []


def test_a_retired_checkpoint_is_deleted_only_once_the_trail_no_longer_names_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ledger_of(store, 5, 10)
    with monkeypatch.context() as patch:
        patch.setattr(ledger._pointer, "swap", away)
        with pytest.raises(StorageUnavailable):
            ledger.retire(1, None, by="test")
    ledger.delete_retired(by="test")
    assert all(store.verify(checkpoint.ref) for checkpoint in Ledger(store, TRAINING, 1).checkpoints)
    assert kept(store) == [5, 10]


def test_a_trail_of_before_is_read(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of(store, 5)
    value = {name: part for name, part in ledger._at.value.items() if name not in ("retiring", FIELD)}
    store.pointer(layout.latest(TRAINING)).swap(ledger._at, value)
    # As on a machine that has not launched the training, nothing is known of its keys.
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    assert kept(store) == [5]


# steps that are spoilt, step resumed from, steps that stay
SPOILT = [((), 15, [5, 10, 15]), ((15,), 10, [5, 10]), ((10, 15), 5, [5]), ((5,), 15, [5, 10, 15])]


@pytest.mark.parametrize(("spoilt", "resumed", "stay"), SPOILT)
def test_it_resumes_from_the_newest_whole_one(
    spoilt: tuple[int, ...], resumed: int, stay: list[int], store: Store
) -> None:
    ledger = ledger_of(store, 5, 10, 15)
    for checkpoint in ledger.checkpoints:
        if checkpoint.step in spoilt:
            spoil(store, checkpoint)
    assert ledger.resume_from().step == resumed
    assert kept(store) == stay
    for step in set(spoilt) - set(stay):
        path = layout.quarantined(layout.checkpoint(TRAINING, step, 0))
        assert "state.json" in store.read_json(path)["reason"]


def test_without_a_whole_one_it_does_not_silently_begin_again(store: Store) -> None:
    ledger = ledger_of(store, 5, 10)
    for checkpoint in ledger.checkpoints:
        spoil(store, checkpoint)
    for _ in range(2):  # the marks of the first try are there already
        assert refusal(CorruptError, ledger.resume_from) == (
            "No committed checkpoint of trainings/k-0 is whole: trainings/k-0/checkpoints/10-g0, trainings/k-0/"
            "checkpoints/5-g0. Restore one of them from a copy, or run with --new to train from the start."
        )


# scores of steps 5, 10, …; select; keep -> step handed over, steps kept
NAN = float("nan")
SELECTIONS = [
    ([0.1, 0.9, 0.5, 0.2], "max", 1, 10, [10, 20]),
    ([0.1, 0.9, 0.5, 0.2], "min", 2, 5, [5, 15, 20]),
    ([0.5, 0.5, 0.5, 0.1], "max", 1, 5, [5, 20]),
    ([0.5, 0.5, 0.5, 0.9], "max", 1, 20, [20]),
    ([0.5, NAN, 0.7, NAN], "max", 1, 15, [15, 20]),
    ([0.1, 0.9, 0.5, 0.2], None, 1, 20, [20]),
    ([0.1, 0.9, 0.5, 0.2], None, 4, 20, [5, 10, 15, 20]),
]


@pytest.mark.parametrize(("scores", "mode", "keep", "handed_over", "stay"), SELECTIONS)
def test_the_newest_and_the_selected_are_kept(
    scores: list[float], mode: str | None, keep: int, handed_over: int, stay: list[int], store: Store
) -> None:
    select = None if mode is None else SelectSpec(metric="score", mode=mode)
    ledger = Ledger(store, TRAINING, 0)
    for step, score in zip((5, 10, 15, 20), scores, strict=True):
        ledger.commit(seal(store, step) if score != score else seal(store, step, score=score))
        ledger.retire(keep, select, by="test")
    assert ledger.chosen(select).step == handed_over
    assert [checkpoint.step for checkpoint in ledger.checkpoints] == stay
    assert kept(store) == stay
    for step in (5, 10, 15, 20):
        uri = layout.checkpoint(TRAINING, step, 0)
        assert store.exists(layout.manifest(uri)) is (step in stay)
        assert store.exists(layout.tombstone(uri)) is (step not in stay)


# what step 5 is; its mark; whether it stays when only the newest is kept
USES: dict[str, tuple[Callable[[str], str], bool]] = {
    "nothing": (lambda uri: f"{TRAINING}/another", False),
    "verified": (layout.verified, True),
    "taken up today": (lambda uri: layout.use(uri, f"{datetime.now(UTC):%Y-%m-%d}"), True),
    "taken up two days ago": (
        lambda uri: layout.use(uri, f"{datetime.now(UTC) - timedelta(days=2.5):%Y-%m-%d}"),
        False,
    ),
}


@pytest.mark.parametrize("use", USES)
def test_what_is_verified_or_in_use_is_not_retired(use: str, store: Store) -> None:
    """A model version may point to the one, a training be warmed up from the other."""
    ledger, (mark, stays) = ledger_of(store, 5, 10, 15), USES[use]
    uri = layout.checkpoint(TRAINING, 5, 0)
    store.create(mark(uri), b"{}")
    ledger.retire(1, None, by="test")
    assert kept(store) == ([5, 15] if stays else [15])
    assert store.exists(layout.manifest(uri)) is stays
    assert store.exists(layout.tombstone(uri)) is not stays


def test_one_that_is_taken_up_while_it_is_retired_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of(store, 5, 10)
    uri = layout.checkpoint(TRAINING, 5, 0)
    real = ledger._move

    def move(*arguments: Any) -> None:
        real(*arguments)
        assert store.claim(uri), "nothing says yet that it is deleted"

    monkeypatch.setattr(ledger, "_move", move)
    ledger.retire(1, None, by="test")
    assert kept(store) == [10]
    store.verify(uri)


def test_a_metric_that_was_never_logged_is_named(store: Store) -> None:
    ledger = Ledger(store, TRAINING, 0)
    ledger.commit(seal(store, 5, loss=0.1, score=0.2))
    with pytest.raises(UsageError, match=r"val_loss was not logged before any checkpoint; logged were: loss, score\."):
        ledger.chosen(SelectSpec(metric="val_loss", mode="min"))


def aside(store: Store) -> list[tuple[int, str]]:
    return [(one.checkpoint.step, one.reason) for one in committed(store, TRAINING)[1]]


def test_who_goes_back_sets_the_later_ones_aside_in_one_move_and_deletes_nothing(store: Store) -> None:
    ledger = ledger_of(store, 5, 10, 15, 20)
    before = store.pointer(layout.latest(TRAINING)).read()
    ledger.go_back(10, by="run-1")
    after = store.pointer(layout.latest(TRAINING)).read()
    assert after.version == before.version + 1
    assert ledger.resume_from() == ledger.newest
    assert (ledger.newest.step, kept(store, 0)) == (10, [5, 10])
    assert [(step, reason.partition(" at ")[0], reason.partition(": ")[2]) for step, reason in aside(store)] == [
        (15, "was set aside", "run-1 went back to step 10"),
        (20, "was set aside", "run-1 went back to step 10"),
    ]
    for step in (15, 20):
        store.verify(layout.checkpoint(TRAINING, step, 0))

    # The next generation goes the same way again, retires what is old, and leaves them alone.
    later = Ledger(store, TRAINING, 1)
    assert later.resume_from().step == 10
    for step in (15, 20):
        assert later.commit(seal(store, step, generation=1))
    later.retire(1, None, by="test")
    assert (kept(store, 1), [step for step, _ in aside(store)]) == ([20], [15, 20])
    store.verify(layout.checkpoint(TRAINING, 15, 0))


def test_a_step_that_is_not_committed_is_refused_with_those_that_are(store: Store) -> None:
    ledger = ledger_of(store, 5, 10, 15)
    ledger.go_back(10, by="r")
    for step in (7, 15):
        with pytest.raises(UsageError, match=f"has no committed checkpoint of step {step}; committed steps: 5, 10"):
            ledger.go_back(step, by="r")
    with pytest.raises(UsageError, match="committed steps: none"):
        Ledger(store, "trainings/other-0", 0).go_back(5, by="r")
