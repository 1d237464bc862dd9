"""A conductor whose nodes are told by hand: what it launches, says, writes and returns, without any process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import (
    CorruptError,
    Fenced,
    GangIncomplete,
    Interrupted,
    NodeLost,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Launch, Retries
from infra.gang import conductor as conductor_module
from infra.gang.conductor import GangOutcome, adopted_sentence
from infra.gang.ledger import Ledger
from infra.gang.members import Progress
from infra.store import Store, layout, open_store
from tests.support.coded import seal_checkpoint
from tests.support.damage import overwrite
from tests.support.refusals import refusal
from tests.support.scripted_nodes import TRAINING, ScriptedNode, SilentNode, Slots, conduct_scripted, seal

pytestmark = pytest.mark.usefixtures("no_pauses")


class Line:
    """A store, and trainings in it whose generations end as listed; `said` is what was reported."""

    def __init__(self, store: Store) -> None:
        self.store, self.said = store, list[Progress]()

    def train(self, *ends: TrainwrightError | str, **options: Any) -> GangOutcome:
        left, nodes = list(ends), open_store(self.store.uri)

        def start(generation: int, node: int) -> ScriptedNode:
            return ScriptedNode(nodes, generation, node, end=left.pop(0))

        outcome = conduct_scripted(self.store, start, **{"on_progress": self.said.append, "patience_s": 0.1, **options})
        assert left == []
        return outcome

    @property
    def sentences(self) -> list[str]:
        return list(dict.fromkeys(progress.sentence for progress in self.said if progress.sentence))

    def launch(self, generation: int) -> Launch:
        return self.store.read_as(layout.launch(TRAINING, generation), Launch.from_json)

    def resumed(self, generation: int) -> int:
        """The step that a generation began with."""
        resume = self.launch(generation).resume
        return resume.step if resume else 0


class Clock:
    """Time that passes when somebody sleeps, and by a microsecond whenever somebody looks."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def line(store: Store) -> Line:
    return Line(store)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(conductor_module, "time", clock)
    return clock


def test_what_it_returns_and_leaves(line: Line) -> None:
    outcome = line.train("2 tensors", launch={"sealed": {"code_digest": "c"}})
    assert (outcome.checkpoint.step, outcome.generations, outcome.dropped_rows) == (10, 1, 3)
    summary = outcome.summary
    assert (summary.wait_share, summary.wait_cause, summary.begun_with) == (0.25, "decoding", "2 tensors")
    assert (outcome.happened, outcome.node_seconds > 0) == ([], True)
    assert Checkpoint.from_json(line.store.read_json(layout.result(TRAINING))) == outcome.checkpoint
    assert line.store.pointer(layout.lease(TRAINING)).read().value["released"]
    told = line.store.read_json(layout.launch(TRAINING, 0))
    expected = {
        "schema_version": 1, "entry": "training.fit.rank", "heartbeat_s": 1.0, "silence_s": 12.0, "hang_s": 45.0,
        "lease_silence_s": 60.0, "stall_s": 1800.0, "grace_s": 30.0, "code": None, "dataset": None, "mixture": {},
        "begin": None, "training": TRAINING, "generation": 0, "token": 0, "resume": None,
        "sealed": {"code_digest": "c"}, "poll_s": 0.001, "nodes": 1, "asked": 1, "skip": [], "left_out": [],
    }  # fmt: skip
    assert {name: told[name] for name in expected} == expected


def test_a_finished_training_is_returned_and_never_taken_back(line: Line) -> None:
    first = line.train("")
    again = line.train()
    assert (again.checkpoint, again.node_seconds, again.generations) == (first.checkpoint, 0.0, 1)
    assert again.dropped_rows == 3
    said = f"{TRAINING} is finished: it handed over step 10, which is never taken back."
    assert refusal(UsageError, line.train, from_step=5).startswith(said)


def test_it_begins_with_a_checkpoint_of_an_earlier_attempt(line: Line) -> None:
    begin = seal(line.store, 7, training="trainings/k-9")
    with pytest.raises(UserCodeError):
        line.train(UserCodeError("it raised."), launch={"begin": begin})
    assert line.launch(0).resume == begin
    said = next(one for one in line.said if one.sentence.startswith("continues from step 7 ("))
    assert (said.generation, said.phase, said.step) == (0, "starting", 7)


def test_room_is_waited_for_and_given_back(line: Line, clock: Clock) -> None:
    slots = Slots(full=2)
    line.train(NodeLost("gone."), "", slots=slots)
    assert clock.slept == [0.2] * 2
    assert slots.asked == [1, 1, 1, 1, "back"]
    waiting = [(one.sentence, one.generation) for one in line.said if one.phase == "waiting"]
    assert ("1 of 2 nodes is free", -1) in waiting


def planned(*made: int) -> Preempted:
    """The end of nodes that were stopped as planned, such as before a time limit, after these checkpoints."""
    return Preempted("It was asked to stop.", details={"planned": True, "made": made})


def test_a_planned_stop_uses_up_a_retry_only_if_nothing_was_gained(line: Line) -> None:
    line.train(planned(5), planned(6), "", retry={"preempted": 0})
    other = Line(open_store(f"{line.store.uri}-2"))
    with pytest.raises(Preempted, match="asked to stop"):
        other.train(planned(5), planned(), retry={"preempted": 0})


def test_what_starts_the_nodes_may_be_away_for_a_while(line: Line) -> None:
    away = [StorageUnavailable("The Prefect server no longer answers.") for _ in range(3)]

    def start(generation: int, node: int) -> ScriptedNode:
        if away:
            raise away.pop()
        return ScriptedNode(line.store, generation, node)

    outcome = conduct_scripted(line.store, start, retry={"storage": 0}, on_progress=line.said.append)
    assert (outcome.checkpoint.step, outcome.generations) == (10, 1)
    assert "waiting: The Prefect server no longer answers." in line.sentences


def test_nodes_that_never_come_are_paid_for_and_said(line: Line) -> None:
    with pytest.raises(GangIncomplete) as caught:
        conduct_scripted(
            line.store,
            lambda *_: SilentNode("its run is Late", "queued"),
            launch={"nodes": 2},
            rollcall_timeout_s=0.2,
        )
    late = "Node 0 (its run is Late), 1 (its run is Late) of 2 had not answered the roll-call of generation 0 after "
    assert caught.value.message.startswith(late)
    assert caught.value.details["log"] == "queued\nqueued"
    assert caught.value.details["node_seconds"] > 2 * 0.2, "each node from its own start"


def test_a_lease_that_is_slow_to_take_is_not_anothers(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor_module, "WAIT_S", 0)
    line.train("")
    assert "waiting" not in {progress.phase for progress in line.said}


def test_a_training_that_was_deleted_is_not_trained(line: Line) -> None:
    line.store.create_json(layout.tombstone(TRAINING), {"by": "test"})
    with pytest.raises(Interrupted, match=f"{TRAINING} was deleted while it was waited for"):
        line.train()
    assert line.store.pointer(layout.lease(TRAINING)).read().value["released"]


def test_a_failure_before_a_generation_began_costs_nothing(line: Line, clock: Clock) -> None:
    with pytest.raises(StorageUnavailable) as raised:
        line.train(slots=Slots(away=True), retry={"storage": 1})
    assert raised.value.details["node_seconds"] == 0
    (sentence,) = [one for one in line.sentences if "Continuing" in one]
    assert sentence.startswith("no generation began (")
    assert sentence.endswith("Continuing from step 0.")


@pytest.mark.parametrize(("silence_s", "renew_s"), [(20.0, 5.0), (60.0, 10.0)])
def test_the_lease_is_renewed_four_times_before_nodes_give_up(
    silence_s: float, renew_s: float, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[float, float]] = []

    class Counted(conductor_module.LeaseKeeper):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append((options["renew_s"], options["patience_s"]))
            super().__init__(*arguments, **options)

    monkeypatch.setattr(conductor_module, "LeaseKeeper", Counted)
    line.train("", launch={"lease_silence_s": silence_s})
    assert made == [(renew_s, 0.1)]


def test_what_a_conductor_handed_over_before_it_died_is_the_result(line: Line) -> None:
    first = line.train("")
    line.store.forget(layout.result(TRAINING))
    again = line.train()
    assert (again.checkpoint, again.generations) == (first.checkpoint, 1)
    assert Checkpoint.from_json(line.store.read_json(layout.result(TRAINING))) == first.checkpoint


def test_the_lease_is_watched_while_the_store_is_away(
    line: Line, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.train(StorageUnavailable("the store is away."), "")
    assert 2.0 <= sum(clock.slept) < 2.2
    clock.slept.clear()
    kept = conductor_module.LeaseKeeper.check

    def check(keeper: conductor_module.LeaseKeeper) -> None:
        if len(clock.slept) == 3:
            raise Fenced("the lease has another owner.")
        kept(keeper)

    monkeypatch.setattr(conductor_module.LeaseKeeper, "check", check)
    line.store.forget(layout.result(TRAINING))
    line.store.forget(layout.latest(TRAINING))
    with pytest.raises(Fenced):
        line.train(StorageUnavailable("the store is away."))
    assert clock.slept == [0.1] * 3


def test_an_error_before_a_generation_begins_is_not_tried_again(line: Line) -> None:
    with pytest.raises(UserCodeError):
        line.train(UserCodeError("it raised.", details={"made": [5]}))
    overwrite(Path(line.store.uri) / layout.checkpoint(TRAINING, 5, 0) / "state.json", b"spoilt")
    with pytest.raises(CorruptError, match=r"No committed checkpoint of trainings/k-0 is whole"):
        line.train()
    assert not line.store.exists(layout.launch(TRAINING, 1))


def refused(step: int) -> CorruptError:
    """A rank's word that it cannot load the checkpoint of a step."""
    return CorruptError("It is not finite.", details={"checkpoint": layout.checkpoint(TRAINING, step, 0)})


def test_a_checkpoint_that_a_rank_refuses_is_quarantined_and_the_one_before_is_used(line: Line) -> None:
    assert line.train(NodeLost("gone.", details={"made": [3, 4]}), refused(4), "").generations == 3
    assert [line.resumed(generation) for generation in (1, 2)] == [4, 3]
    reason = line.store.read_json(layout.quarantined(layout.checkpoint(TRAINING, 4, 0)))["reason"]
    assert reason == "It is not finite."
    ended = [one.sentence for one in line.said if one.phase == "ended"]
    assert ended[1] == f"generation 1 ended (corrupt): {reason} It is quarantined. Continuing from step 3."


def test_where_every_checkpoint_is_refused_the_training_is_corrupt(line: Line) -> None:
    with pytest.raises(CorruptError, match=r"^It is not finite"):
        line.train(NodeLost("gone.", details={"made": [4]}), refused(4))
    assert line.store.exists(layout.quarantined(layout.checkpoint(TRAINING, 4, 0)))
    line.said.clear()
    with pytest.raises(CorruptError, match="It is not finite"):
        line.train(refused(3))  # which is not a checkpoint of this training
    assert not any("quarantined" in sentence for sentence in line.sentences)


def test_budgets_are_the_trainings_and_are_reset_once_a_failure_was_reported(line: Line) -> None:
    """The conductor is killed after its first retry (here: a bug ends it); the next one has only what is left."""

    def lost() -> NodeLost:
        return NodeLost("gone.", details={"made": [4]})

    def die(progress: Progress) -> None:
        if progress.generation == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        line.train(lost(), on_progress=die, retry={"node_lost": 2})
    assert Ledger(line.store, TRAINING, 0).retries.used == {"node_lost": 1}
    with pytest.raises(NodeLost):
        line.train(lost(), lost(), retry={"node_lost": 2})
    assert max(one.generation for one in line.said) == 3, "generation 1 ended before it began; one retry was left"
    assert Ledger(line.store, TRAINING, 1).retries == Retries()
    assert line.train("", retry={"node_lost": 2}).checkpoint.step == 10


@pytest.mark.parametrize("skipped", [[], [(48, 56)]], ids=["the same samples", "samples that are skipped now"])
def test_only_a_generation_on_the_same_samples_is_adopted(skipped: list[tuple[int, int]], line: Line) -> None:
    with pytest.raises(UserCodeError):
        line.train(UserCodeError("it raised."))
    # As its ranks would have sealed it, had they not been ended.
    facts = {"step": 7, "epoch": 0, "world_size": 1, "metrics": {}, "dropped_rows": 3}
    seal_checkpoint(line.store, TRAINING, 7, 0, facts)
    if skipped:
        Ledger(line.store, TRAINING, 0).record_recovery(skipped, Retries())
    assert line.train("").generations == 2
    adopted = not skipped
    assert (line.resumed(1) == 7, adopted_sentence([7]) in line.sentences) == (adopted, adopted)


@pytest.mark.parametrize(
    ("steps", "start", "end"),
    [([15], "step 15 had ", "it is committed now"), ([995, 1000], "steps 995, 1,000 had ", "they are committed now")],
)
def test_the_adopted_steps_are_named(steps: list[int], start: str, end: str) -> None:
    assert adopted_sentence(steps) == f"{start}been sealed but not committed by the previous conductor; {end}"
