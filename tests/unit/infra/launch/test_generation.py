"""Which of several failures is the cause, and which checkpoints a generation may commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts import errors
from data_contracts.errors import CorruptError, Hung, NodeLost, TrainwrightError
from data_contracts.handoffs import Checkpoint, Ref
from infra.launch import generation as generation_module
from infra.launch.conductor import DEFAULTS
from infra.launch.generation import Generation, _Node
from infra.store import layout, open_store

TRAINING = "trainings/k-0"


@pytest.fixture
def committed() -> list[Checkpoint]:
    return []


@pytest.fixture
def generation(tmp_path: Path, committed: list[Checkpoint]) -> Generation:
    launch = {**DEFAULTS, "training": TRAINING, "generation": 2, "nodes": 2}
    store = open_store(str(tmp_path / "store"))
    return Generation(
        store,
        launch,
        lambda generation, node: pytest.fail("nothing is started"),
        commit=committed.append,
        check=lambda: None,
        on_progress=lambda progress: None,
    )


def checkpoint(training: str, generation: int) -> Checkpoint:
    ref = Ref(uri=f"{training}/checkpoints/5-g{generation}", id="0" * 64, seal="0" * 64)
    fields = {"training": training, "step": 5, "epoch": 0, "generation": generation, "world_size": 1}
    return Checkpoint(ref=ref, key="k", **fields)


COMMITS = [(TRAINING, 2, True), (TRAINING, 1, False), (TRAINING, 3, None), ("trainings/other-0", 2, None)]


@pytest.mark.parametrize(("training", "number", "taken"), COMMITS)
def test_a_generation_commits_only_what_it_wrote(
    training: str, number: int, taken: bool | None, generation: Generation, committed: list[Checkpoint]
) -> None:
    if taken is None:
        with pytest.raises(CorruptError, match="was reported by generation 2, which did not write it"):
            generation._commit_one(checkpoint(training, number))
    else:
        generation._commit_one(checkpoint(training, number))
    assert bool(committed) is bool(taken)


# what the nodes say, in their order -> the cause
CAUSES = [
    (["NodeLost", "UserCodeError"], "UserCodeError"),
    (["NodeLost", "OutOfMemory"], "OutOfMemory"),
    (["NodeLost", "TrainwrightError"], "TrainwrightError"),
    (["Preempted", "NodeLost"], "Preempted"),
    (["StorageUnavailable", "NodeLost"], "StorageUnavailable"),
    (["UserCodeError", "Fenced"], "Fenced"),
    (["NodeLost", "CorruptError"], "CorruptError"),
    (["NodeLost", None], "NodeLost"),
]


@pytest.mark.parametrize(("said", "cause"), CAUSES)
def test_the_cause_stands_before_its_consequences(said: list[str | None], cause: str, generation: Generation) -> None:
    for name in said:
        answer: dict[str, Any] | None = None
        if name is not None:
            answer = {"status": "failed", "error": getattr(errors, name)("as said.").to_json()}
        generation._nodes.append(_Node(handle=None, started=0.0, exit=answer))  # type: ignore[arg-type]
    assert type(generation._cause()) is getattr(errors, cause)


def test_a_supervisor_that_vanished_stands_before_all(generation: Generation) -> None:
    said = {"status": "failed", "error": TrainwrightError("a bug.").to_json()}
    lost = NodeLost("The supervisor of node 1 was ended by SIGKILL.")
    generation._nodes += [_Node(None, 0.0, exit=said), _Node(None, 0.0, lost=lost)]  # type: ignore[arg-type]
    assert generation._cause() is lost


class Clock:
    """Time that passes only when somebody sleeps, and what happens then."""

    def __init__(self, happens: list[Any]) -> None:
        self.now, self.happens = 1000.0, happens

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 10
        assert self.happens, "it should have been noticed by now"
        self.happens.pop(0)()


class Handle:
    """A node that runs."""

    def ended(self) -> None: ...


# What is heard every 10 s of the ranks' steps; the stall is 25 s.
HEARD = [
    ([{0: 3, 1: 3}, {}, {}, {}], "Rank 0 stands at step 3", 0),
    ([{0: 3, 1: 2}, {0: 4}, {0: 5}, {1: 2}, {}, {}], "Rank 1 stands at step 2", 1),
    ([{}, {}, {}], "No rank has reported", None),
    ([{0: 3}, {0: 3}, {0: 3}, {0: 3}], "Rank 0 stands at step 3", 0),
]


@pytest.mark.parametrize(("heard", "who", "rank"), HEARD)
def test_ranks_that_stand_still_are_hung(
    heard: list[dict[int, int]], who: str, rank: int | None, generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their node's heartbeats come all the while: a process that lives is no progress."""
    generation.launch["stall_s"] = 25
    generation._nodes.append(_Node(Handle(), 0.0, joined={}, heard=1000.0))  # type: ignore[arg-type]

    def beat(number: int, steps: dict[int, int]) -> None:
        ranks = [{"rank": rank, "step": step, "checkpoints": []} for rank, step in steps.items()]
        generation.store.create_json(layout.beat(TRAINING, 2, 0, number), {"ranks": ranks})

    happens = [lambda n=n, steps=steps: beat(n, steps) for n, steps in enumerate(heard)]
    monkeypatch.setattr(generation_module, "time", Clock(happens))
    with pytest.raises(Hung) as raised:
        generation._follow()
    assert raised.value.message == f"{who}, and none made a step or a checkpoint for 25 s."
    assert raised.value.details.get("rank") == rank
    assert happens == []


def test_a_checkpoint_is_progress_and_a_store_that_is_away_is_no_stall(
    generation: Generation, committed: list[Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    generation.launch["stall_s"] = 25
    generation._nodes.append(_Node(Handle(), 0.0, joined={}, heard=1000.0))  # type: ignore[arg-type]
    real, gone = generation.store.read_json, [False]

    def read(path: str) -> Any:
        if gone[0]:
            raise errors.StorageUnavailable("the store is away.")
        return real(path)

    def beat(number: int, checkpoints: int) -> None:
        gone[0] = False
        one = [checkpoint(TRAINING, 2).to_json()] * checkpoints
        report = {"rank": 0, "step": 5, "checkpoints": one}
        generation.store.create_json(layout.beat(TRAINING, 2, 0, number), {"ranks": [report]})

    def away() -> None:
        gone[0] = True

    def nothing() -> None: ...

    happens = [lambda: beat(0, 0), nothing, nothing, lambda: beat(1, 1), nothing, nothing]
    happens += [away, nothing, nothing, nothing, lambda: beat(2, 1), nothing, nothing]
    monkeypatch.setattr(generation.store, "read_json", read)
    monkeypatch.setattr(generation_module, "time", Clock(happens))
    with pytest.raises(Hung):
        generation._follow()
    assert happens == []
    assert len(committed) == 2
