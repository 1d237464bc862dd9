"""A gang under real faults: fake ranks, but real supervisors, a real torchrun and a real store.

Each case: what goes wrong, what it is called, whether the gang goes on, and from where; and no process is ever left.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import (
    Cancelled,
    Fenced,
    GangIncomplete,
    NodeLost,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.handoffs import Checkpoint
from infra.gang import members
from infra.gang.members import Progress
from infra.gang.node import Handle, Start, local
from infra.processes.processes import find_marked, kill_marked, new_mark
from infra.store import Lease, Store, layout, open_store
from tests.support.conducting import TRAINING, run, steps
from tests.support.damage import overwrite

pytestmark = pytest.mark.warm


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test ends with no process of its own left, whatever happened in it."""
    mark = new_mark()
    monkeypatch.setenv("TRAINWRIGHT_MARK", mark)
    yield
    left = find_marked(mark)
    kill_marked(mark)
    assert not left


def fault(kind: str, rank: int = 1, step: int = 7, generation: int = 0) -> dict[str, Any]:
    return {"kind": kind, "rank": rank, "step": step, "generation": generation}


def exit_of(store: Store, generation: int, node: int = 0) -> dict[str, Any]:
    return store.read_json(layout.node_exit(TRAINING, generation, node))


@pytest.mark.parametrize(("nodes", "devices"), [(1, 2), (2, 2)])
def test_a_gang_trains_to_the_end(nodes: int, devices: int, store: Store) -> None:
    seen: list[Progress] = []
    outcome = run(store, {}, nodes=nodes, devices=devices, on_progress=seen.append)
    assert (outcome.checkpoint.step, outcome.checkpoint.world_size) == (10, nodes * devices)
    assert (outcome.generations, outcome.dropped_rows) == (1, 3)
    assert (outcome.summary.wait_share, outcome.summary.wait_cause) == (0.07, "decoding")
    assert outcome.node_seconds > nodes * 0.5
    assert steps(store) == {(0, rank): list(range(1, 11)) for rank in range(nodes * devices)}
    assert Checkpoint.from_json(store.read_json(layout.result(TRAINING))) == outcome.checkpoint
    assert store.pointer(layout.lease(TRAINING)).read().value["released"]
    latest = store.pointer(layout.latest(TRAINING)).read().value
    assert [entry["step"] for entry in latest["checkpoints"]] == [5, 10]
    assert not store.exists(layout.cancel(TRAINING, 0))
    for node in range(nodes):
        record = exit_of(store, 0, node)
        assert (record["status"], record["error"]) == ("done", None)
        assert 0 < record["released"] - record["started"] < outcome.node_seconds
        assert [entry["report"]["step"] for entry in record["ranks"]] == [10] * devices
        assert b"threads" in store.read(layout.rank_log(TRAINING, 0, node, node * devices))
    assert (seen[0].phase, seen[-1].phase) == ("starting", "training")
    assert (seen[-1].step, seen[-1].samples, seen[-1].checkpoint_step) == (10, 80, 10)


# fault, rank that has it, cause that the generation ends with
GOES_ON = [
    ("sigkill", 1, "node_lost"),
    ("sigkill", 0, "node_lost"),
    ("exit", 1, "node_lost"),
    ("kill agent", 0, "node_lost"),
    ("kill node", 1, "node_lost"),
    ("storage", 1, "storage"),
    ("sigterm", 1, "preempted"),
    ("terminate agent", 0, "preempted"),
    ("terminate node", 1, "preempted"),
]


@pytest.mark.parametrize(("kind", "rank", "cause"), GOES_ON)
def test_a_fault_ends_the_generation_and_the_next_goes_on(kind: str, rank: int, cause: str, store: Store) -> None:
    seen: list[Progress] = []
    # Slow steps, so that the other rank cannot be done before the fault is noticed.
    fake = {"faults": [{**fault(kind, rank), "after": 5}], "steps": 60, "step_s": 0.05}
    outcome = run(store, fake, on_progress=seen.append)
    assert (outcome.checkpoint.step, outcome.checkpoint.generation, outcome.generations) == (60, 1, 2)
    said = [progress.sentence for progress in seen if progress.phase == "ended"]
    assert len(said) == 1
    assert said[0].startswith(f"generation 0 ended ({cause}): ")
    resumed = store.read_json(layout.launch(TRAINING, 1))["resume"]["step"]
    assert said[0].endswith(f"Continuing from step {resumed}.")
    if cause == "preempted":
        assert resumed == max(steps(store)[0, 0]), "what rank 0 had done was kept to the step"
    assert resumed >= 5
    assert {min(taken) for (generation, _), taken in steps(store).items() if generation == 1} == {resumed + 1}
    assert store.read_json(layout.cancel(TRAINING, 0)) == {"schema_version": 1, "cause": cause}
    spent = [progress.node_seconds for progress in seen if progress.phase == "training"]
    assert spent == sorted(spent), "the earlier generation counts"
    assert 0 < spent[0] < spent[-1] <= outcome.node_seconds


def test_a_node_that_is_lost_takes_the_others_with_it(store: Store) -> None:
    seen: list[Progress] = []
    fake = {"faults": [fault("kill node", rank=1, step=3)], "steps": 20, "step_s": 0.05}
    outcome = run(store, fake, nodes=2, devices=1, on_progress=seen.append)
    assert (outcome.checkpoint.step, outcome.generations) == (20, 2)
    said = next(p.sentence for p in seen if p.phase == "ended")
    assert re.search(r"The supervisor of node 1 \(\S+\) was ended by SIGKILL\.", said)


@pytest.mark.warm(False)  # what is stopped is found by its pid
def test_a_supervisor_that_stands_still_is_lost(store: Store) -> None:
    fake = {"faults": [fault("stop node")], "steps": 12, "step_s": 0.05}
    with pytest.raises(NodeLost, match=r"^Node 0 \(\S+\) has published no heartbeat for 1\.5 s\."):
        run(store, fake, launch={"silence_s": 1.5}, retry={"node_lost": 0})


RAISED = [
    ("user", 1, UserCodeError, "ValueError in the model."),
    ("bug", 0, TrainwrightError, "Rank 0 failed: ZeroDivisionError: a bug of ours."),
]


@pytest.mark.parametrize(("kind", "rank", "error", "message"), RAISED)
def test_an_error_in_code_is_raised_once_and_never_tried_again(
    kind: str, rank: int, error: type[TrainwrightError], message: str, store: Store
) -> None:
    with pytest.raises(TrainwrightError) as caught:
        run(store, {"faults": [fault(kind, rank)], "steps": 2000}, nodes=1)
    assert type(caught.value) is error
    assert caught.value.message == message
    assert (caught.value.details["rank"], caught.value.details["node"]) == (rank, 0)
    assert caught.value.details["node_seconds"] > 0.5
    assert not store.exists(layout.launch(TRAINING, 1))
    assert store.pointer(layout.lease(TRAINING)).read().value["released"]
    if kind == "user":
        assert caught.value.user_traceback == "Traceback: the user's"
    else:
        assert "ZeroDivisionError" in caught.value.details["log"]


def test_a_users_error_on_one_node_is_the_cause_whatever_the_others_say(store: Store) -> None:
    fake = {"faults": [fault("user", rank=1), fault("sigkill", rank=0)], "steps": 2000}
    with pytest.raises(UserCodeError):
        run(store, fake, nodes=2, devices=1)


def test_a_budget_is_spent_and_then_the_cause_raised(store: Store) -> None:
    # The rank that is left saves when it is stopped, a few steps on; the second fault lies well beyond.
    faults = [fault("sigkill", step=7), fault("sigkill", step=60, generation=1)]
    fake = {"faults": faults, "every": 1000, "steps": 2000}
    with pytest.raises(NodeLost, match="Rank 1 ended without an answer") as caught:
        run(store, {**fake, "step_s": 0.05}, retry={"node_lost": 1})
    assert store.exists(layout.launch(TRAINING, 1))
    assert not store.exists(layout.launch(TRAINING, 2))
    each = [exit_of(store, g)["released"] - exit_of(store, g)["started"] for g in (0, 1)]
    assert caught.value.details["node_seconds"] > sum(each), "failed generations are paid for too"
    assert "rank 1 of 2" in caught.value.details["log"]


def test_a_missing_node_is_named_and_the_others_are_released(store: Store) -> None:
    class Nowhere:
        def ended(self) -> None: ...
        def log(self) -> str:
            return "queued"

        def status(self) -> str:
            return ""

        def kill(self) -> None: ...

    start, began, starting_s = local(store.uri, {}, TRAINING), time.monotonic(), list[float]()

    def some(generation: int, node: int) -> Handle:
        handle = start(generation, node) if node == 0 else Nowhere()
        starting_s.append(time.monotonic() - began)
        return handle

    with pytest.raises(GangIncomplete) as caught:
        run(store, {}, nodes=3, start=some, rollcall_timeout_s=8)
    assert caught.value.message == "Node 1, 2 of 3 had not answered the roll-call of generation 0 after 8 s."
    assert caught.value.details["log"] == "queued\nqueued"
    # Each node counts from its own start.
    assert caught.value.details["node_seconds"] > 3 * 8 - sum(starting_s) - 0.1


def test_a_supervisor_that_cannot_start_is_said_at_once(store: Store) -> None:
    start = local(store.uri + "-elsewhere", {}, TRAINING)
    with pytest.raises(NodeLost, match="The supervisor of node 0 ended with exit code 1") as caught:
        run(store, {}, start=start, retry={"node_lost": 0})
    assert "There is no store at" in caught.value.details["log"]


def away(store: Store, times: float) -> Start:
    """Starts nodes once it was asked so often in vain."""
    start, asked = local(store.uri, {}, TRAINING), itertools.count()

    def launching(generation: int, node: int) -> Handle:
        if next(asked) < times:
            raise StorageUnavailable("The Prefect server no longer answers.")
        return start(generation, node)

    return launching


def test_what_starts_the_nodes_may_be_away_for_a_while(store: Store) -> None:
    seen: list[Progress] = []
    outcome = run(store, {}, nodes=2, start=away(store, 3), retry={"storage": 0}, on_progress=seen.append)
    assert (outcome.checkpoint.step, outcome.generations) == (10, 1)
    assert "waiting: The Prefect server no longer answers." in {progress.sentence for progress in seen}


def test_a_finished_training_is_returned_without_a_launch(store: Store) -> None:
    def never(generation: int, node: int) -> Handle:
        raise AssertionError("nothing is to be launched")

    first = run(store, {})
    again = run(store, {}, start=never)
    assert again.checkpoint == first.checkpoint
    assert (again.node_seconds, again.generations, again.dropped_rows) == (0.0, 1, 3)


def unfinished(store: Store) -> list[Checkpoint]:
    """Leave a training that broke off at step 12, with checkpoints of steps 5 and 10."""
    with pytest.raises(UserCodeError):
        run(store, {"faults": [fault("user", rank=0, step=12)], "steps": 20})
    latest = store.pointer(layout.latest(TRAINING)).read().value
    return [Checkpoint.from_json(entry) for entry in latest["checkpoints"]]


def test_an_unfinished_training_goes_on_from_its_newest_checkpoint(store: Store) -> None:
    unfinished(store)
    outcome = run(store, {"steps": 20})
    assert (outcome.checkpoint.step, outcome.generations) == (20, 2)
    assert steps(store)[1, 0] == list(range(11, 21))
    launches = [store.read_json(layout.launch(TRAINING, g)) for g in (0, 1)]
    assert [launch["token"] for launch in launches] == [0, 1]


def test_it_goes_back_to_a_step_as_asked(store: Store) -> None:
    unfinished(store)
    with pytest.raises(UsageError, match="no committed checkpoint of step 7; committed steps: 5, 10"):
        run(store, {"steps": 20}, from_step=7)
    assert store.list(f"{TRAINING}/g1") == [], "refused before anything was launched"
    seen: list[Progress] = []
    outcome = run(store, {"steps": 20}, from_step=5, on_progress=seen.append)
    assert (outcome.checkpoint.step, outcome.checkpoint.generation) == (20, 1)
    assert steps(store)[1, 0] == list(range(6, 21))
    [said] = [progress.sentence for progress in seen if progress.sentence.startswith("continues")]
    assert "continues from step 5 (step 10 was set aside at " in said
    assert said.endswith(": test went back to step 5)")
    with pytest.raises(UsageError, match="is finished: it handed over step 20, which is never taken back"):
        run(store, {"steps": 20}, from_step=5)


def test_a_training_that_broke_off_after_its_last_step_hands_over_that_checkpoint(store: Store) -> None:
    with pytest.raises(UserCodeError):
        run(store, {"faults": [{**fault("user"), "after": 10}]})
    outcome = run(store, {})
    assert (outcome.checkpoint.step, outcome.checkpoint.generation, outcome.generations) == (10, 0, 2)


def test_a_corrupt_checkpoint_is_passed_over(store: Store) -> None:
    _, newest = unfinished(store)
    overwrite(Path(store.uri) / newest.ref.uri / "state.json", b'{"step":99}')
    assert run(store, {"steps": 20}).checkpoint.step == 20
    assert steps(store)[1, 0] == list(range(6, 21))


def test_the_selected_checkpoint_is_handed_over_and_kept(store: Store) -> None:
    fake = {"steps": 20, "scores": {5: 0.1, 10: 0.9, 15: 0.5, 20: 0.2}}
    outcome = run(store, fake, select={"metric": "score", "mode": "max"}, keep=1, devices=1)
    assert outcome.checkpoint.step == 10
    assert store.read_json(layout.result(TRAINING))["step"] == 10
    sealed = [step for step in (5, 10, 15, 20) if store.exists(layout.manifest(layout.checkpoint(TRAINING, step, 0)))]
    assert sealed == [10, 20]


def test_a_conductor_whose_lease_was_taken_is_fenced(store: Store) -> None:
    taken: list[Lease] = []

    def usurp(progress: Progress) -> None:
        # Not at one step: a busy machine is not seen at each.
        if progress.step >= 3 and not taken:
            taken.append(Lease.take(store, layout.lease(TRAINING), "usurper", patience_s=0))

    with pytest.raises(Fenced, match="now belongs to usurper"):
        run(store, {"steps": 2000, "every": 3000, "step_s": 0.2}, on_progress=usurp, launch={"lease_silence_s": 4})
    assert not store.exists(layout.result(TRAINING))
    lease = store.pointer(layout.lease(TRAINING)).read().value
    assert (lease["holder"], lease["released"]) == ("usurper", False)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_cancels(kind: type[BaseException], store: Store) -> None:
    def stop(progress: Progress) -> None:
        if progress.checkpoint_step >= 5:
            raise kind

    with pytest.raises(Cancelled) as caught:
        run(store, {"steps": 2000, "step_s": 0.05}, on_progress=stop)
    assert caught.value.details["node_seconds"] > 0.5
    assert store.read_json(layout.cancel(TRAINING, 0))["cause"] == "cancelled"
    assert store.pointer(layout.lease(TRAINING)).read().value["released"]


def test_a_bug_in_the_callers_callback_leaves_nothing_either(store: Store) -> None:
    def stop(progress: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store, {"steps": 2000}, on_progress=stop)
    assert store.pointer(layout.lease(TRAINING)).read().value["released"]


def test_a_store_that_is_away_for_a_while_does_not_end_training(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Progress] = []
    real, away = store.read_json, [12]

    def sometimes(path: str) -> Any:
        if "beat-" in path and away[0] > 0:
            away[0] -= 1
            raise StorageUnavailable("the store is away.")
        return real(path)

    monkeypatch.setattr(store, "read_json", sometimes)
    outcome = run(store, {"steps": 20}, on_progress=seen.append)
    assert (outcome.checkpoint.step, outcome.generations) == (20, 1)
    assert "waiting: the store is away." in [progress.sentence for progress in seen]
    assert seen[-1].sentence == ""


def test_the_time_that_a_store_takes_to_answer_is_not_a_nodes_silence(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, slow = store.read_json, [3]

    def tried_again(path: str) -> Any:
        if path.endswith("beat-3.json") and slow[0]:
            slow[0] -= 1
            time.sleep(1.5)
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(store, "read_json", tried_again)
    monkeypatch.setattr(members, "SLOW_S", 0.5)
    outcome = run(store, {"steps": 40, "step_s": 0.05}, launch={"silence_s": 1.0})
    assert slow == [0]
    assert outcome.generations == 1
