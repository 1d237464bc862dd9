"""Another conductor takes over right before any single write of the old one or its node: nothing that is read changes.

Each try stops the old conductor at one of its writes, has a new one take the lease and train to the end, keeps what
anybody reads of the training, lets the old one go on to its own end, and compares. Or the old one goes on to its end
while the new one trains, which has gone back to an earlier step: what it comes to is what counts.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import Diverged, Fenced, TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Heartbeat, Launch, NodeExit
from infra.gang.ledger import list_checkpoints
from infra.store import Store, layout, open_store
from tests.support.damage import overwrite
from tests.support.scripted_nodes import TRAINING, ScriptedNode, conduct_scripted

pytestmark = pytest.mark.usefixtures("no_pauses")

WRITES = ("create", "create_from", "create_file", "replace", "delete")


@dataclass
class Case:
    """A training: the steps that have checkpoints, how many are kept, and what happens to it before.

    Attributes:
        begun: how many of the checkpoints an earlier conductor has committed; spoilt: whether its newest is broken.
        back: whether the old conductor is asked to go back to the first of them.
        diverges: whether its first generation does.
    """

    steps: list[int] = field(default_factory=lambda: [5, 10])
    keep: int = 1
    begun: int = 0
    spoilt: bool = False
    back: bool = False
    diverges: bool = False


SAMPLE = [
    Case(),
    Case(begun=1),
    Case([5, 10, 15], begun=2, spoilt=True),
    Case([5, 10, 15], keep=3, begun=2, back=True),
    Case(diverges=True),
]


class Failpoint:
    """Calls `then` right before the nth write through any of its stores, once."""

    def __init__(self, nth: int, then: Callable[[], None]) -> None:
        self.nth, self.then, self.count, self.paths = nth, then, 0, []

    def watch(self, store: Store) -> Store:
        for name in WRITES:
            if hasattr(store._backend, name):
                setattr(store._backend, name, self._counted(getattr(store._backend, name)))
        return store

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: str, *arguments: Any, **more: Any) -> Any:
            # The lease itself is left to its own tests: who comes too late for it has it later, in good order.
            if not path.endswith("/lease"):
                self.count += 1
                self.paths.append(path)
                if self.count == self.nth:
                    self.then()
            return real(path, *arguments, **more)

        return call


class Node(ScriptedNode):
    """Ends as its case says."""

    def __init__(self, store: Store, case: Case, generation: int, wait: Callable[[], object]) -> None:
        super().__init__(store, generation, steps=tuple(case.steps), wait=wait)
        self.diverges = case.diverges

    def train(self, launch: Launch) -> list[Heartbeat | NodeExit]:
        if self.diverges and not launch.skip:
            details = {"samples": [8, 16], "rows": [1], "made": self.steps}
            self.end = Diverged("no number.", details=details)
        return super().train(launch)


def train(store: Store, nodes: Store, case: Case, **options: Any) -> Checkpoint:
    wait = options.pop("wait", lambda: None)
    settings = {"retry": {"storage": 0}, "keep": case.keep, "patience_s": 0.0, **options}
    return conduct_scripted(store, lambda generation, _: Node(nodes, case, generation, wait), **settings).checkpoint


def begun(folder: Path, case: Case) -> Store:
    """A store in which an earlier conductor has come as far as the case says."""
    store = open_store(str(folder))
    if case.begun:

        def leave(progress: Any) -> None:
            if progress.checkpoint_step == case.steps[case.begun - 1]:
                raise ZeroDivisionError

        with contextlib.suppress(ZeroDivisionError):
            train(store, store, Case(case.steps[: case.begun], keep=9), on_progress=leave)
        if case.spoilt:
            newest = max(list_checkpoints(store, TRAINING), key=lambda found: found.step)
            overwrite(Path(store.uri) / newest.uri / "state.json", b"other")
    return store


def read_by_anyone(store: Store) -> dict[str, Any]:
    """The training as promote, resume, gc and people see it."""
    latest = store.pointer(layout.latest(TRAINING)).read().value
    known = [found for found in list_checkpoints(store, TRAINING) if found.state != "uncommitted"]
    for checkpoint in [*latest["checkpoints"], store.read_json(layout.result(TRAINING))]:
        store.verify(checkpoint["ref"]["uri"])
    return {
        "latest": latest,
        "result": store.read_json(layout.result(TRAINING)),
        "checkpoints": [found.to_json() for found in known],
    }


def come_to(*stores: Store, case: Case, **options: Any) -> Checkpoint | TrainwrightError:
    """What a conductor with these stores, its own and its node's, comes to."""
    try:
        return train(*stores, case, **options)
    except TrainwrightError as error:
        return error


def stopped_at(point: Failpoint, folder: Path, case: Case, **options: Any) -> Checkpoint | TrainwrightError:
    """What the old conductor comes to, which is stopped at one of its writes or its node's."""
    stores = [point.watch(open_store(str(folder))) for _ in range(2)]
    return come_to(*stores, case=case, patience_s=0.05, **options)


def attempt(folder: Path, case: Case, nth: int) -> bool:
    """One try; False if the old conductor has no such write."""
    begun(folder, case)
    seen: list[dict[str, Any]] = []
    third = open_store(str(folder))

    def take_over() -> None:
        train(open_store(str(folder)), open_store(str(folder)), Case(case.steps, case.keep, diverges=case.diverges))
        seen.append(read_by_anyone(third))

    point = Failpoint(nth, take_over)
    ended = stopped_at(point, folder, case, **({"from_step": case.steps[0]} if case.back else {}))
    if not seen:
        return False
    assert read_by_anyone(third) == seen[0], f"{case}: taken over before write {nth}, of {point.paths[nth - 1]}"
    if isinstance(ended, Checkpoint):
        assert ended.to_json() == seen[0]["result"], "whoever returns one returns what was handed over"
    else:
        assert isinstance(ended, Fenced) or "is finished" in str(ended), repr(ended)
    return True


def overlapping(folder: Path, case: Case, nth: int) -> bool:
    """One try in which the new one goes back and trains while the old one goes on; False if there is no such write."""
    begun(folder, case)
    training, over = threading.Event(), threading.Event()
    taken: list[Future[Checkpoint | TrainwrightError]] = []

    def wait() -> None:
        training.set()
        over.wait()

    def new() -> Checkpoint | TrainwrightError:
        stores = [open_store(str(folder)) for _ in range(2)]
        came = come_to(*stores, case=case, wait=wait, from_step=case.steps[0])
        training.set()
        return came

    def take_over() -> None:
        taken.append(pool.submit(new))
        training.wait()

    with ThreadPoolExecutor(1) as pool:
        point = Failpoint(nth, take_over)
        ended = stopped_at(point, folder, case)
        over.set()
    if not taken:
        return False
    came, store = taken[0].result(), open_store(str(folder))
    where = f"{case}: taken over before write {nth}, of {point.paths[nth - 1]}"
    if isinstance(came, Checkpoint):
        assert read_by_anyone(store)["result"] == came.to_json(), where
        assert isinstance(ended, Fenced), where
    elif isinstance(ended, Checkpoint):
        # Decided before: the new one is told so, or that there is no such step yet.
        assert store.read_json(layout.result(TRAINING)) == ended.to_json(), where
    return True


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_conductor_that_was_taken_over_changes_nothing(case: Case, tmp_path: Path) -> None:
    tries = 0
    while attempt(tmp_path / str(tries), case, tries + 1):
        tries += 1
    assert tries >= 12


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_a_conductor_that_was_taken_over_hands_nothing_over_while_the_next_trains(every: bool, tmp_path: Path) -> None:
    case = Case([5, 10, 15], keep=9, begun=1)
    begun(tmp_path / "counted", case)
    point = Failpoint(0, lambda: None)
    train(*(point.watch(open_store(str(tmp_path / "counted"))) for _ in range(2)), case)
    assert point.count > 10
    # Handing over comes last.
    for nth in range(1, point.count + 1) if every else (1, point.count // 2, point.count - 1, point.count):
        assert overlapping(tmp_path / str(nth), case, nth)


@pytest.mark.sweep
@pytest.mark.timeout(1200)
def test_none_of_a_thousand_tries_is_accepted(tmp_path: Path) -> None:
    draw, tries = random.Random(5), 0
    while tries < 1000:
        steps = sorted(draw.sample(range(1, 100), draw.randint(2, 6)))
        of = draw.randint(0, len(steps) - 1)
        case = Case(steps, draw.randint(1, 3), of, of > 1 and draw.random() < 0.3, False, draw.random() < 0.3)
        case.back = of > 1 and not case.spoilt and draw.random() < 0.5
        before, nth = tries, 1
        while attempt(tmp_path / f"{before}-{nth}", case, nth):
            tries, nth = tries + 1, nth + 1
        assert tries > before
    print(f"{tries} tries, 0 accepted")
