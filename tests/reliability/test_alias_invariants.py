"""Eight processes at one alias: one champion at any moment, a linear history, no half-promotion.

They promote, roll back, release, approve and refuse, and are killed, or lose an answer, between any two requests to the
store. Hypothesis chooses the steps, shrinks a failure to the fewest, and prints them as a program. What must hold is in
`World.look` and `World.compare` (`tests/support/alias_world.py`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from infra.signing.keys import make_key_pair
from tests.support.alias_actors import FATES, Place
from tests.support.alias_world import ACTORS, CHECKPOINTS, Actors, World, place

NewPlace = Callable[[], contextlib.AbstractContextManager[Place]]
actor = st.integers(0, ACTORS - 1)
ahead = st.sampled_from(["move", "write"]) | st.integers(1, 60)


@pytest.fixture(scope="module")
def actors() -> Iterator[Actors]:
    """The processes, which serve all tests of this module."""
    made = Actors()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with keys of the releases and of an approver."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("release", "approver"):
        make_key_pair(folder / name)
    return str(folder)


class AliasMachine(RuleBasedStateMachine):
    """Steps that Hypothesis chooses: each is that of an actor that can take it, if there is one."""

    def __init__(self, new_place: NewPlace, actors: Actors, counts: Counter[str], keys: str) -> None:
        super().__init__()
        self.counts = counts
        self.new_place, self.actors, self.keys = new_place, actors, keys
        self._place = contextlib.ExitStack()
        self.failed = False

    @initialize(protected=st.booleans())
    def begin(self, protected: bool) -> None:
        where = self._place.enter_context(self.new_place())
        self.world = World(where, self.actors, protected=protected, keys=self.keys)

    def _idle(self, number: int) -> int:
        idle = [one for one in range(ACTORS) if one not in self.world.doing]
        return idle[number % len(idle)] if idle else number

    def _busy(self, number: int) -> int:
        busy = sorted(self.world.doing)
        return busy[number % len(busy)] if busy else number

    def _take(self, step: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            step(*args, **kwargs)
        except BaseException:
            self.failed = True
            raise

    @rule(number=actor, n=st.integers(0, CHECKPOINTS - 1), force=st.booleans(), steps=ahead)
    def promote(self, number: int, n: int, force: bool, steps: Any) -> None:
        checkpoint = self.world.checkpoints[n]
        self._take(self.world.begin, self._idle(number), "promote", steps=steps, checkpoint=checkpoint, force=force)

    @rule(number=actor, which=st.integers(0, 20), steps=ahead)
    def run_again(self, number: int, which: int, steps: Any) -> None:
        self._take(self.world.again, self._idle(number), which, steps=steps)

    @rule(number=actor, version=st.none() | st.integers(1, 6), steps=ahead)
    def roll_back(self, number: int, version: int | None, steps: Any) -> None:
        self._take(self.world.begin, self._idle(number), "back", steps=steps, version=version)

    @rule(number=actor, version=st.none() | st.integers(1, 6), steps=ahead)
    def release(self, number: int, version: int | None, steps: Any) -> None:
        self._take(self.world.begin, self._idle(number), "release", steps=steps, version=version)

    @rule(number=actor, what=st.sampled_from(["approve", "refuse"]), which=st.integers(0, 20), steps=ahead)
    def answer(self, number: int, what: str, which: int, steps: Any) -> None:
        self._take(self.world.answer, self._idle(number), what, which, steps=steps)

    @rule(number=actor, steps=ahead)
    def go_on(self, number: int, steps: Any) -> None:
        self._take(self.world.go, self._busy(number), steps)

    @rule(number=actor, what=st.sampled_from(FATES))
    def befall(self, number: int, what: str) -> None:
        self._take(self.world.fate, self._busy(number), what)

    @rule(number=actor)
    def deliver(self, number: int) -> None:
        self._take(self.world.deliver, number)

    def teardown(self) -> None:
        """Let all finish and compare; after a failure, leave no actor in the middle of an act."""
        with self._place:
            if not self.failed:
                self._take(self.world.end)
                self.counts.update(self.world.counts)
            for number in list(self.world.doing):
                self.world.actors.kill(number)


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        ("folder", 12), ("signed", 1), ("names", 1), ("s3", 1),
        pytest.param("postgres", 1, marks=pytest.mark.apt("postgresql")),
        pytest.param("folder", 900, marks=pytest.mark.sweep), pytest.param("signed", 150, marks=pytest.mark.sweep),
        pytest.param("names", 250, marks=pytest.mark.sweep), pytest.param("s3", 100, marks=pytest.mark.sweep),
        pytest.param("postgres", 30, marks=[pytest.mark.sweep, pytest.mark.apt("postgresql")]),
    ],
)  # fmt: skip
def test_no_steps_break_it(kind: str, examples: int, actors: Actors, keys: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    database = request.getfixturevalue("postgres").url() if kind == "postgres" else ""
    where = ("folder", None, "", "") if kind == "signed" else (kind, None, "", database)
    if server is not None:
        where = (kind, server.options, server.bucket(), "")
    chosen = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=True,
    )
    counts: Counter[str] = Counter()
    signing = keys if kind == "signed" else ""
    run_state_machine_as_test(lambda: AliasMachine(lambda: place(*where), actors, counts, signing), settings=chosen)
    print(f"\n{kind}, {examples} examples: {dict(counts)}")
    assert counts["promote: moved"] > 0
    assert examples < 10 or sum(number for what, number in counts.items() if "killed: " in what) > 0
