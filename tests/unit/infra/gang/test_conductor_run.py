"""A conductor whose nodes are told by hand: what it launches, says, writes and returns, without any process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import (
    CorruptError,
    Fenced,
    Interrupted,
    NodeLost,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Joined, Launch, NodeExit, RankAnswer, RankEnd, RankReport
from data_contracts.pipeline_spec import RetrySpec
from infra.gang import conductor as conductor_module
from infra.gang.conductor import GangOutcome, TrainingRequest, conduct
from infra.gang.members import Progress
from infra.store import Store, folder, layout, open_store
from tests.support.coded import publish

TRAINING = "trainings/k-0"
Ends = TrainwrightError | str


class Node:
    """Joins at once; then it ends as its generation does: with an error, or done with checkpoints of steps 5 and 10."""

    def __init__(self, store: Store, generation: int, node: int, end: Ends) -> None:
        self.store, self.place, self.end, self.over = store, (TRAINING, generation, node), end, False
        joined = Joined(node=node, address="127.0.0.1", port=1, host="h")
        publish(store, layout.joined(*self.place), joined)

    def ended(self) -> None:
        _, generation, _ = self.place
        if self.over or not self.store.exists(layout.rollcall(TRAINING, generation)):
            return
        self.over = True
        if isinstance(self.end, str):
            made = [seal(self.store, step, generation) for step in (5, 10)]
            plan = {"dropped_rows": 3, "wait_share": 0.25, "wait_cause": "decoding", "begun_with": self.end}
            rank = RankEnd(rank=0, report=report(made), done=RankAnswer(checkpoint=made[-1], plan=plan))
            record = NodeExit(status="done", ranks=[rank])
        else:
            # A generation may have committed checkpoints before it failed.
            made = [seal(self.store, step, generation) for step in self.end.details.pop("made", [])]
            rank = RankEnd(rank=0, report=report(made))
            record = NodeExit(status="failed", error=self.end.to_json(), ranks=[rank])
        publish(self.store, layout.node_exit(*self.place), record)

    def log(self) -> str:
        return ""

    def status(self) -> str:
        return ""

    def kill(self) -> None: ...


def report(made: list[Checkpoint]) -> RankReport:
    return RankReport(rank=0, step=10, micro_batch=4, checkpoints=made)


def seal(store: Store, step: int, generation: int) -> Checkpoint:
    writer = store.writer(layout.checkpoint(TRAINING, step, generation))
    writer.put("state.json", str(step).encode())
    ref = writer.seal("checkpoint", {"step": step}, {})
    return Checkpoint(ref=ref, key="k", training=TRAINING, step=step, epoch=0, generation=generation, world_size=1)


class Line:
    """A store, and trainings in it whose generations end as listed; `said` is what was reported."""

    def __init__(self, store: Store) -> None:
        self.store, self.said = store, list[Progress]()

    def train(self, *ends: Ends, launch: dict[str, Any] | None = None, **options: Any) -> GangOutcome:
        left = list(ends)
        nodes = open_store(self.store.uri)
        request = TrainingRequest(
            launch=Launch(**{"training": TRAINING, "nodes": 1, "devices": 1, "poll_s": 0.001, **(launch or {})}),
            holder="test",
            retry=RetrySpec(**options.pop("retry", {})),
            keep=options.pop("keep", 2),
            select=None,
            rollcall_timeout_s=30,
            patience_s=options.pop("patience_s", 0.1),
            start=lambda generation, node: Node(nodes, generation, node, left.pop(0)),
            on_progress=options.pop("on_progress", self.said.append),
            **options,
        )
        outcome = conduct(self.store, request)
        assert left == []
        return outcome

    @property
    def sentences(self) -> list[str]:
        return list(dict.fromkeys(progress.sentence for progress in self.said if progress.sentence))

    def launch(self, generation: int) -> dict[str, Any]:
        told: dict[str, Any] = self.store.read_json(layout.launch(TRAINING, generation))
        return told


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
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(folder, "_sync", lambda path: None)
    return Line(open_store(str(tmp_path / "store")))


def test_what_it_returns_and_leaves(line: Line) -> None:
    outcome = line.train("2 tensors", launch={"sealed": {"code_digest": "c"}})
    assert (outcome.checkpoint.step, outcome.generations, outcome.dropped_rows) == (10, 1, 3)
    assert (outcome.summary.wait_share, outcome.summary.wait_cause, outcome.summary.begun_with) == (
        0.25,
        "decoding",
        "2 tensors",
    )
    assert (outcome.happened, outcome.node_seconds > 0) == ([], True)
    assert Checkpoint.from_json(line.store.read_json(layout.result(TRAINING))) == outcome.checkpoint
    assert line.store.pointer(layout.lease(TRAINING)).read().value["released"]
    told = line.launch(0)
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
    with pytest.raises(UsageError) as raised:
        line.train(from_step=5)
    assert raised.value.message == f"{TRAINING} is finished: it handed over step 10, which is never taken back."


def test_it_begins_with_a_checkpoint_of_an_earlier_attempt(line: Line) -> None:
    writer = line.store.writer("trainings/k-9/checkpoints/7-g0")
    ref = writer.seal("checkpoint", {"step": 7}, {}, [writer.put("state.json", b"7")])
    begin = Checkpoint(ref=ref, key="k", training="trainings/k-9", step=7, epoch=0, generation=0, world_size=1)
    with pytest.raises(UserCodeError):
        line.train(UserCodeError("it raised."), launch={"begin": begin})
    assert line.launch(0)["resume"] == begin.to_json()
    said = next(one for one in line.said if one.sentence.startswith("continues from step 7 ("))
    assert (said.generation, said.phase, said.step) == (0, "starting", 7)


def test_room_is_waited_for_and_given_back(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Slots:
        def take(self, nodes: int) -> str | None:
            asked.append(nodes)
            return "1 of 2 nodes is free" if len(asked) < 3 else None

        def give_back(self) -> None:
            asked.append("back")

    clock = Clock()
    monkeypatch.setattr(conductor_module, "time", clock)
    line.train(NodeLost("gone."), "", slots=Slots())
    assert clock.slept == [0.2] * 2
    assert asked == [1, 1, 1, 1, "back"]
    waiting = [(one.sentence, one.generation) for one in line.said if one.phase == "waiting"]
    assert ("1 of 2 nodes is free", -1) in waiting


def test_a_checkpoint_that_is_not_the_trainings_is_not_quarantined(line: Line) -> None:
    with pytest.raises(CorruptError, match="nobody knows it"):
        line.train(CorruptError("nobody knows it.", details={"checkpoint": "trainings/k-0/checkpoints/3-g0"}))
    assert not any("quarantined" in sentence for sentence in line.sentences)


def test_a_training_that_was_deleted_is_not_trained(line: Line) -> None:
    line.store.create_json(layout.tombstone(TRAINING), {"by": "test"})
    with pytest.raises(Interrupted, match=f"{TRAINING} was deleted while it was waited for"):
        line.train()
    assert line.store.pointer(layout.lease(TRAINING)).read().value["released"]


def test_a_failure_before_a_generation_began_costs_nothing(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor_module._Conductor, "_back_off", lambda self, seconds, keeper: None)

    class Slots:
        def take(self, nodes: int) -> str | None:
            raise StorageUnavailable("the server is away.")

        def give_back(self) -> None: ...

    with pytest.raises(StorageUnavailable) as raised:
        line.train(slots=Slots(), retry={"storage": 1})
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


def test_the_lease_is_watched_while_the_store_is_away(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(conductor_module, "time", clock)
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
