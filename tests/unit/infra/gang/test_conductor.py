"""A gang under real faults: fake ranks, but real supervisors, a real torchrun and a real store.

Each case: what goes wrong, what it is called, whether the gang goes on, and from where; and no process is ever left.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import (
    Cancelled,
    NodeLost,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Launch
from infra.gang import conductor, hub, members
from infra.gang import node as node_module
from infra.gang.hub import Hub
from infra.gang.members import Progress
from infra.gang.node import LocalNodes
from infra.store import Store, layout
from tests.support.conducting import TRAINING, run, steps
from tests.support.scripted_nodes import Launching
from tests.support.waiting import until

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("mark")]


def fault(kind: str, rank: int = 1, step: int = 7, generation: int = 0) -> dict[str, Any]:
    return {"kind": kind, "rank": rank, "step": step, "generation": generation}


def exit_of(store: Store, generation: int, node: int = 0) -> dict[str, Any]:
    return store.read_json(layout.node_exit(TRAINING, generation, node))


def test_a_gang_trains_to_the_end(store: Store) -> None:
    nodes = devices = 2
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


# fault, rank that has it, cause that the generation ends with, and how its sentence begins
GOES_ON = [
    ("sigkill", 0, "node_lost", "Rank 0 ended without an answer"),
    ("kill agent", 0, "node_lost", ""),
    ("kill node", 1, "node_lost", r"The supervisor of node 0 \(\S+\) was ended by SIGKILL\."),
    ("storage", 1, "storage", ""),
    ("terminate agent", 0, "preempted", ""),
    ("terminate node", 1, "preempted", ""),
]
MORE = [("sigkill", 1, "node_lost", ""), ("exit", 1, "node_lost", ""), ("sigterm", 1, "preempted", "")]


@pytest.mark.parametrize(
    ("kind", "rank", "cause", "sentence"), [*GOES_ON, *(pytest.param(*one, marks=pytest.mark.sweep) for one in MORE)]
)
def test_a_fault_ends_the_generation_and_the_next_goes_on(
    kind: str, rank: int, cause: str, sentence: str, store: Store, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    goes_on = tmp_path / "goes-on"

    def hear(progress: Progress) -> None:
        seen.append(progress)
        if progress.generation == 1:
            goes_on.touch()

    # The last step waits, so that the other rank cannot be done before the fault is noticed.
    fake = {"faults": [{**fault(kind, rank), "after": 5}], "steps": 60, "step_s": 0.02, "until": str(goes_on)}
    outcome = run(store, fake, on_progress=hear)
    assert (outcome.checkpoint.step, outcome.checkpoint.generation, outcome.generations) == (60, 1, 2)
    said = [progress.sentence for progress in seen if progress.phase == "ended"]
    assert len(said) == 1
    assert re.match(rf"generation 0 ended \({cause}\): {sentence}", said[0])
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


RAISED = [
    ("user", 1, UserCodeError, "ValueError in the model (rank 1)."),
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


def test_a_budget_is_spent_and_then_the_cause_raised(store: Store) -> None:
    # The rank that is left saves when it is stopped, some steps on; the second fault comes at the first step then.
    faults = [fault("sigkill"), fault("sigkill", generation=1)]
    fake = {"faults": faults, "every": 1000, "steps": 2000}
    with pytest.raises(NodeLost, match="Rank 1 ended without an answer") as caught:
        run(store, {**fake, "step_s": 0.05}, retry={"node_lost": 1})
    assert store.exists(layout.launch(TRAINING, 1))
    assert not store.exists(layout.launch(TRAINING, 2))
    each = [exit_of(store, g)["released"] - exit_of(store, g)["started"] for g in (0, 1)]
    assert caught.value.details["node_seconds"] > sum(each), "failed generations are paid for too"
    assert "rank 1 of 2" in caught.value.details["log"]


def test_a_supervisor_that_cannot_start_is_said_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = node_module.LocalNode
    monkeypatch.setattr(
        node_module, "LocalNode", lambda arguments, env: real([f"{arguments[0]}-elsewhere", *arguments[1:]], env)
    )
    with pytest.raises(NodeLost, match="The supervisor of node 0 ended with exit code 1") as caught:
        run(store, {}, retry={"node_lost": 0})
    assert "There is no store at" in caught.value.details["log"]


def test_it_goes_back_to_a_step_as_asked(store: Store) -> None:
    with pytest.raises(UserCodeError):
        run(store, {"faults": [fault("user", rank=0, step=12)], "steps": 20})
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


def test_a_training_that_broke_off_after_its_last_step_hands_over_that_checkpoint(store: Store) -> None:
    with pytest.raises(UserCodeError):
        run(store, {"faults": [{**fault("user"), "after": 10}]})
    outcome = run(store, {})
    assert (outcome.checkpoint.step, outcome.checkpoint.generation, outcome.generations) == (10, 0, 2)


def test_the_selected_checkpoint_is_handed_over_and_kept(store: Store) -> None:
    fake = {"steps": 20, "scores": {5: 0.1, 10: 0.9, 15: 0.5, 20: 0.2}}
    outcome = run(store, fake, select={"metric": "score", "mode": "max"}, keep=1, devices=1)
    assert outcome.checkpoint.step == 10
    assert store.read_json(layout.result(TRAINING))["step"] == 10
    sealed = [step for step in (5, 10, 15, 20) if store.exists(layout.manifest(layout.checkpoint(TRAINING, step, 0)))]
    assert sealed == [10, 20]


@pytest.mark.parametrize(("kind", "becomes"), [(SystemExit, Cancelled), (ZeroDivisionError, ZeroDivisionError)])
def test_what_a_callback_raises_leaves_no_process_and_no_lease(
    kind: type[BaseException], becomes: type[Exception], store: Store
) -> None:
    def stop(progress: Progress) -> None:
        if progress.checkpoint_step >= 5:
            raise kind

    with pytest.raises(becomes) as caught:
        run(store, {"steps": 2000, "step_s": 0.05}, on_progress=stop)
    if isinstance(caught.value, Cancelled):
        assert caught.value.details["node_seconds"] > 0.5
        assert store.read_json(layout.cancel(TRAINING, 0))["cause"] == "cancelled"
    assert store.pointer(layout.lease(TRAINING)).read().value["released"]


def test_the_time_that_a_store_takes_to_answer_is_not_a_nodes_silence(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, waited_s, goes_on, hubs = store.create_json, [0.0], tmp_path / "goes-on", list[Hub]()

    def slow(path: str, value: Any) -> None:
        if path == layout.gang_beat(TRAINING, 0, 0):
            waited_s[0] += 900  # a process of this machine may be silent for five times 120 s
            until(lambda: any(one.at > time.monotonic() + 800 for one in list(hubs[0]._news.values())))
            goes_on.touch()
        real(path, value)

    def nodes(store: Store, launch: Launch, hub: Hub) -> LocalNodes:
        hubs.append(hub)
        return LocalNodes(store, launch, hub)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + waited_s[0], sleep=time.sleep)
    for module in (conductor, members, hub):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(store, "create_json", slow)
    assert run(store, {"until": str(goes_on)}, launcher=Launching(nodes)).generations == 1
    assert goes_on.exists()
