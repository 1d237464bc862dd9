"""A conductor whose nodes are told by hand: what it launches, says, writes and returns, without any process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Diverged,
    Fenced,
    Interrupted,
    NodeLost,
    Preempted,
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
from infra.store import Lease, Store, folder, layout, open_store
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


def test_a_failure_is_said_and_the_next_generation_resumes(line: Line) -> None:
    outcome = line.train(NodeLost("Node 0 is gone."), "")
    assert (outcome.generations, outcome.checkpoint.step) == (2, 10)
    assert "generation 0 ended (node_lost): Node 0 is gone. Continuing from step 0." in line.sentences
    assert [progress.phase for progress in line.said if progress.sentence.startswith("generation 0")] == ["ended"]
    assert (line.launch(1)["resume"], line.launch(1)["token"]) == (None, 0)
    # Seconds of nodes never go back from one generation to the next.
    seconds = [progress.node_seconds for progress in line.said]
    assert seconds == sorted(seconds)
    assert outcome.node_seconds >= seconds[-1]


def test_a_budget_that_is_spent_raises_the_cause_with_the_time_used(line: Line) -> None:
    with pytest.raises(NodeLost) as raised:
        line.train(NodeLost("first."), NodeLost("second."), retry={"node_lost": 1})
    assert raised.value.message == "second."
    assert raised.value.details["node_seconds"] > 0
    assert not line.store.exists(layout.result(TRAINING))
    assert line.store.pointer(layout.lease(TRAINING)).read().value["released"]
    assert [line.store.read_json(layout.cancel(TRAINING, n))["cause"] for n in (0, 1)] == ["node_lost"] * 2
    assert line.train("").generations == 3, "a later conductor goes on"


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


def test_a_store_that_is_away_is_backed_off_from(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(conductor_module._Conductor, "_back_off", lambda self, seconds, keeper: waited.append(seconds))
    away = [StorageUnavailable("the store is away.") for _ in range(6)]
    line.train(*away, "", retry={"storage": 6})
    assert waited == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_checkpoint_that_is_not_the_trainings_is_not_quarantined(line: Line) -> None:
    with pytest.raises(CorruptError, match="nobody knows it"):
        line.train(CorruptError("nobody knows it.", details={"checkpoint": "trainings/k-0/checkpoints/3-g0"}))
    assert not any("quarantined" in sentence for sentence in line.sentences)


def test_a_training_that_was_deleted_is_not_trained(line: Line) -> None:
    line.store.create_json(layout.tombstone(TRAINING), {"by": "test"})
    with pytest.raises(Interrupted, match=f"{TRAINING} was deleted while it was waited for"):
        line.train()
    assert line.store.pointer(layout.lease(TRAINING)).read().value["released"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_cancels_with_the_time_used(kind: type[BaseException], line: Line) -> None:
    def stop(progress: Progress) -> None:
        if progress.phase == "training":
            raise kind

    with pytest.raises(Cancelled) as raised:
        line.train("", on_progress=stop)
    assert raised.value.message == f"{TRAINING} was cancelled; no process is left."
    assert raised.value.details["node_seconds"] > 0
    assert line.store.read_json(layout.cancel(TRAINING, 0))["cause"] == Cancelled.cause


def test_a_checkpoint_that_is_refused_is_quarantined_and_the_one_before_is_used(line: Line) -> None:
    refused = f"{TRAINING}/checkpoints/10-g0"
    line.train(
        NodeLost("gone.", details={"made": [5, 10]}), CorruptError("it is broken.", details={"checkpoint": refused}), ""
    )
    assert "generation 0 ended (node_lost): gone. Continuing from step 10." in line.sentences
    quarantined = "generation 1 ended (corrupt): it is broken. It is quarantined. Continuing from step 5."
    assert quarantined in line.sentences, line.sentences
    assert [line.launch(n)["resume"]["step"] for n in (1, 2)] == [10, 5]


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


def test_the_end_of_a_generation_is_shown_with_its_number_and_step(line: Line) -> None:
    taken = iter([StorageUnavailable("the server is away."), None, None])

    class Slots:
        def take(self, nodes: int) -> str | None:
            if (error := next(taken)) is not None:
                raise error
            return None

        def give_back(self) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conductor_module, "time", Clock())
        line.train(NodeLost("gone.", details={"made": [5]}), "", slots=Slots())
    ends = [one for one in line.said if one.phase == "ended"]
    assert [(one.generation, one.step) for one in ends] == [(-1, 0), (0, 5)]
    assert ends[0].node_seconds == 0 < ends[1].node_seconds


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


def test_while_another_conductor_trains_it_waits_and_returns_its_result(line: Line) -> None:
    first = line.train("")
    line.store.forget(layout.result(TRAINING))
    other = Lease.take(line.store, layout.lease(TRAINING), "other")
    said: list[Progress] = []

    def finish(progress: Progress) -> None:
        said.append(progress)
        line.store.create_json(layout.result(TRAINING), first.checkpoint.to_json())

    outcome = line.train(on_progress=finish, patience_s=60)
    assert said == [Progress(0, "waiting", sentence="another run trains this; waiting for it")]
    assert (outcome.checkpoint, outcome.node_seconds) == (first.checkpoint, 0.0)
    other.renew()
    assert not line.store.pointer(layout.lease(TRAINING)).read().value["released"], "the lease is still the other's"


def test_samples_that_are_passed_over_stay_so_for_the_next_conductor(line: Line) -> None:
    diverged = Diverged("no number.", details={"samples": [16, 24], "rows": [7]})
    with pytest.raises(UserCodeError):
        line.train(diverged, UserCodeError("it raised."), launch={"train": {"global_batch_size": 8}})
    assert "generation 0 ended (diverged): no number. Samples 16 to 24 are passed over. Continuing from step 0." in (
        line.sentences
    )
    assert line.train("").generations == 3
    assert [line.launch(n)["skip"] for n in range(3)] == [[], [[16, 24]], [[16, 24]]]


def test_optional_nodes_are_waited_for_at_first_and_when_the_gang_grows(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, waits = conductor_module.Generation.run, list[tuple[float, bool]]()

    def watched(generation: Any, timeout_s: float, *, patient: bool) -> Any:
        waits.append((timeout_s, patient))
        return run(generation, timeout_s, patient=patient)

    monkeypatch.setattr(conductor_module.Generation, "run", watched)
    line.train(NodeLost("gone."), Preempted("more nodes.", details={"grows": True}), "")
    assert waits == [(30, True), (30, False), (30, True)]


def test_who_went_back_is_named_without_the_mark_of_the_process(line: Line) -> None:
    with pytest.raises(UserCodeError):
        line.train(UserCodeError("it raised.", details={"made": [5, 10]}))
    line.train("", from_step=5)
    assert line.launch(1)["resume"]["step"] == 5
    (aside,) = line.store.pointer(layout.latest(TRAINING)).read().value["aside"]
    assert aside["checkpoint"]["step"] == 10
    assert aside["reason"].endswith(": test went back to step 5")
