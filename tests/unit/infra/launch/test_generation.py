"""Which of several failures is the cause, and which checkpoints a generation may commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts import errors
from data_contracts.errors import CorruptError, NodeLost, TrainwrightError
from data_contracts.handoffs import Checkpoint, Ref
from infra.launch.conductor import DEFAULTS
from infra.launch.generation import Generation, _Node
from infra.store import open_store

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
