"""Eight processes at one alias: one champion at any moment, a linear history, no half-promotion.

They promote, roll back, release, approve and refuse, and are killed, or lose an answer, between any two requests to the
store. The steps come from a seed or from Hypothesis, which shrinks a failure to the fewest steps and prints them; each
failure says how to repeat it (`python -m tests.support.alias_steps KIND SEED`; Hypothesis prints the steps as a
program). What must hold is in `World.look` and `World.compare` (`tests/support/alias_world.py`).
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

from tests.support.alias_actors import FATES
from tests.support.alias_steps import free, place, seeded
from tests.support.alias_world import ACTORS, CHECKPOINTS, Actors, World

SAMPLE = {"folder": (1, 8), "names": (701, 2), "s3": (901, 1), "signed": (1001, 3), "postgres": (1201, 1)}
# 1,000 seeds: 700 on a folder, 200 with the names in a database, 100 on S3. Then 150 in which moves and answers are
# signed, and 30 with the names in PostgreSQL.
SWEEP = [("folder", at, 50) for at in range(1, 701, 50)]
SWEEP += [("names", at, 20) for at in range(701, 901, 20)]
SWEEP += [("s3", at, 10) for at in range(901, 1001, 10)]
SWEEP += [("signed", at, 15) for at in range(1001, 1151, 15)]
SWEEP += [("postgres", at, 10) for at in range(1201, 1231, 10)]
NEEDS = {"postgres": [pytest.mark.apt("postgresql")]}
actor = st.integers(0, ACTORS - 1)
ahead = st.sampled_from(["move", "write"]) | st.integers(1, 60)


@pytest.fixture(scope="module")
def actors() -> Iterator[Actors]:
    """The processes, which serve all tests of this module."""
    made = Actors()
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("kind", "first", "seeds"),
    [
        *(pytest.param(kind, *about, marks=NEEDS.get(kind, [])) for kind, about in SAMPLE.items()),
        *(pytest.param(*one, marks=[pytest.mark.sweep, *NEEDS.get(one[0], [])]) for one in SWEEP),
    ],
)
def test_what_holds_at_every_step(
    kind: str, first: int, seeds: int, actors: Actors, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    database = request.getfixturevalue("postgres").url() if kind == "postgres" else ""
    counts = seeded(kind, range(first, first + seeds), actors, server, database)
    print(f"\n{kind}, {seeds} seeds from {first}: {dict(counts)}")
    assert counts["promote: moved"] > (seeds if seeds > 1 else 0)
    assert sum(number for what, number in counts.items() if "killed: " in what) > 0


@pytest.mark.parametrize(
    ("kind", "seeds", "acts"),
    [
        ("folder", 1, 3), ("names", 1, 2),
        pytest.param("folder", 60, 6, marks=pytest.mark.sweep),
        pytest.param("names", 20, 4, marks=pytest.mark.sweep),
        pytest.param("s3", 10, 2, marks=pytest.mark.sweep),
    ],
)  # fmt: skip
def test_what_a_reader_sees_while_all_run(
    kind: str, seeds: int, acts: int, actors: Actors, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("s3_server") if kind == "s3" else None
    seen = 0
    for seed in range(seeds):
        options, bucket = (server.options, server.bucket()) if server else ({}, "")
        with place(kind, options, bucket) as there:
            world = World(there, actors, protected=seed % 2 == 1)
            seen += free(world, seed, acts)
    print(f"\n{kind}: the reader saw the alias move {seen} times in {seeds} seeds")
    assert seen > 0


class AliasMachine(RuleBasedStateMachine):
    """Steps that Hypothesis chooses; a step that does not apply does nothing."""

    def __init__(self, kind: str, actors: Actors, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts
        self.kind, self.actors = kind, actors
        self._place = contextlib.ExitStack()
        self.failed = False

    @initialize(protected=st.booleans())
    def begin(self, protected: bool) -> None:
        self.world = World(self._place.enter_context(place(self.kind)), self.actors, protected=protected)

    def _take(self, step: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            step(*args, **kwargs)
        except BaseException:
            self.failed = True
            raise

    @rule(number=actor, n=st.integers(0, CHECKPOINTS - 1), force=st.booleans(), steps=ahead)
    def promote(self, number: int, n: int, force: bool, steps: Any) -> None:
        checkpoint = self.world.checkpoints[n]
        self._take(self.world.begin, number, "promote", steps=steps, checkpoint=checkpoint, force=force)

    @rule(number=actor, which=st.integers(0, 20), steps=ahead)
    def run_again(self, number: int, which: int, steps: Any) -> None:
        self._take(self.world.again, number, which, steps=steps)

    @rule(number=actor, version=st.none() | st.integers(1, 6), steps=ahead)
    def roll_back(self, number: int, version: int | None, steps: Any) -> None:
        self._take(self.world.begin, number, "back", steps=steps, version=version)

    @rule(number=actor, version=st.none() | st.integers(1, 6), steps=ahead)
    def release(self, number: int, version: int | None, steps: Any) -> None:
        self._take(self.world.begin, number, "release", steps=steps, version=version)

    @rule(number=actor, what=st.sampled_from(["approve", "refuse"]), which=st.integers(0, 20), steps=ahead)
    def answer(self, number: int, what: str, which: int, steps: Any) -> None:
        self._take(self.world.answer, number, what, which, steps=steps)

    @rule(number=actor, steps=ahead)
    def go_on(self, number: int, steps: Any) -> None:
        self._take(self.world.go, number, steps)

    @rule(number=actor, what=st.sampled_from(FATES))
    def befall(self, number: int, what: str) -> None:
        self._take(self.world.fate, number, what)

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
        ("folder", 6), ("names", 2),
        pytest.param("folder", 200, marks=pytest.mark.sweep), pytest.param("names", 50, marks=pytest.mark.sweep),
    ],
)  # fmt: skip
def test_no_steps_that_hypothesis_finds_break_it(kind: str, examples: int, actors: Actors) -> None:
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
    run_state_machine_as_test(lambda: AliasMachine(kind, actors, counts), settings=chosen)
    print(f"\n{kind}, {examples} examples: {dict(counts)}")
    assert counts["promote: moved"] > 0
