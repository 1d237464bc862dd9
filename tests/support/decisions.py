"""Random promotions, rollbacks and releases against a model of the rules: `python -m tests.support.decisions NUMBER`.

What decides is the real code (`promote`, `rollback`, `release`, the registry and its compare-and-set) on a store in
memory or in a folder; only the scores are given. The model below shares nothing with it: it knows each score as the
fraction that it was drawn as, and each alias as a list of moves. Before a move of the alias lands, another promoter may
come first; after it landed, its answer may be lost and another may move the alias on.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any
from unittest import mock

from data_contracts.errors import GateNotMet, InsufficientEvidence, OnHold, StorageUnavailable, UsageError
from data_contracts.handoffs import Checkpoint, Evaluation
from infra.models import registry
from infra.store import Store, layout
from tasks.run.run import Run
from tasks.stages import promote as promote_stage
from tasks.stages.rollback import release, rollback
from tests.support.raced import Memory, Raced
from tests.support.runs import make_run
from tests.support.scripted_nodes import seal

BEGAN, APART = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=9)  # what is resumed may look back for a day
CHECKPOINTS = 5
decide = promote_stage.promote.find_or_make


@dataclass(frozen=True)
class Score:
    """A metric as it was drawn: the true value (None: not a number) and what floating point makes of it."""

    true: Fraction | None
    value: float
    rows: int
    ratio: bool


@dataclass(frozen=True)
class Gate:
    """A gate as it was drawn; `bound` is the decimal that stands in the spec."""

    kind: str
    bound: str


@dataclass
class Model:
    """The rules, written down a second time. A version is (checkpoint, score); an alias is a list of versions."""

    versions: list[tuple[int, int]] = field(default_factory=list)
    moves: list[tuple[int, str]] = field(default_factory=list)
    first: dict[int, int | None] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)

    @property
    def now(self) -> int | None:
        return self.moves[-1][0] if self.moves else None

    def checkpoint(self, version: int) -> int:
        return self.versions[version - 1][0]

    def move(self, version: int, run: str) -> None:
        self.first.setdefault(version, self.now)
        self.moves.append((version, run))

    def verdict(self, run: str, of: int, gates: list[Gate], scores: list[Score], mode: str, forced: bool) -> str:
        if any(run == one for _, one in self.moves):
            return "promoted"
        champion = None
        if self.now is not None:
            champion = self.checkpoint(self.now)
            if champion == of:
                return "unchanged"
        if of in self.held and not forced:
            return "held"
        answers = [
            judged(gate, scores[of], None if champion is None else scores[champion], 1 if mode == "max" else -1)
            for gate in gates
        ]
        if None in answers:
            return "evidence"
        return "passes" if all(answers) else "refused"

    def version_of(self, of: int, score: int) -> int:
        if not self.versions or self.versions[-1] != (of, score):
            self.versions.append((of, score))
        return len(self.versions)

    def back(self, to: int | None) -> bool:
        """A rollback; whether it is possible."""
        if self.now is None:
            return False
        target = to if to is not None else self.first[self.now]
        while to is None and target is not None and self.checkpoint(target) in self.held:
            target = self.first[target]
        if target is None or target == self.now or not 1 <= target <= len(self.versions):
            return False
        left = self.checkpoint(self.now)
        self.held.pop(left, None)
        self.held[left] = self.now
        self.held.pop(self.checkpoint(target), None)
        self.move(target, "")
        return True

    def release(self, version: int) -> bool:
        """A release; whether it is possible."""
        if self.now is None or not 1 <= version <= len(self.versions):
            return False
        of = [one for one, at in self.held.items() if at == version] or [self.checkpoint(version)]
        return len(of) == 1 and self.held.pop(of[0], None) is not None


def judged(gate: Gate, mine: Score, theirs: Score | None, sign: int) -> bool | None:
    """Whether a gate is met; None where there is nothing to decide on."""
    if mine.rows == 0 or mine.true is None:
        return None
    slack = Fraction(0) if mine.ratio else abs(mine.true) / 2**23
    bound = Fraction(gate.bound)
    if gate.kind in ("min", "max") and float(mine.true) == float(bound):
        return True
    if gate.kind == "min":
        return mine.true >= bound - slack
    if gate.kind == "max":
        return mine.true <= bound + slack
    if theirs is None:
        return True
    if theirs.rows != mine.rows or theirs.true is None:
        return None
    slack = max(slack, Fraction(0) if theirs.ratio else abs(theirs.true) / 2**23)
    gain = sign * (mine.true - theirs.true)
    return gain >= bound - slack and (gain > 0 or bound <= 0)


class World:
    """One model with one alias, some checkpoints, and what its promoters do; the real thing beside the model of it."""

    def __init__(self, seed: int, backend: Any) -> None:
        self.draw = random.Random(seed)
        self.raced = Raced(backend, layout.alias("m", "champion"))
        self.store = Store(self.raced, {})
        self.model = Model()
        self.mode = self.draw.choice(["max", "min"])
        made = [seal(self.store, n) for n in range(CHECKPOINTS)]
        self.checkpoints = [one.model_copy(update={"state": "verified"}) for one in made]
        self.scores: list[Score] = []
        self.runs: list[tuple[str, int]] = []
        self.count = 0
        self.told: Counter[str] = Counter()

    def step(self) -> None:
        """One act of a promoter or a person, and its races; AssertionError where the two differ."""
        what = self.draw.random()
        if what < 0.12:
            self._back()
        elif what < 0.2:
            self._release()
        else:
            self._promote(races=True)
        self._compare()

    def _compare(self) -> None:
        found = registry.read_alias(self.store, "m", "champion")
        assert (found and found[1]) == self.model.now, (found and found[1], self.model)
        held = registry.holds(self.store, found[0] if found else None)
        ids = [one.ref.id for one in self.checkpoints]
        assert {ids.index(one.checkpoint_id): one.version for one in held} == self.model.held, (held, self.model)

    def _back(self) -> None:
        to = self.draw.choice([None, None, *range(1, len(self.model.versions) + 2)])
        expected = self.model.back(to)
        self._try("rollback", expected, lambda: rollback(self.store, "m", "champion", to, self._about("back")))

    def _release(self) -> None:
        version = self.draw.randint(1, len(self.model.versions) + 1)
        expected = self.model.release(version)
        alias = self.store, "m", "champion"
        self._try("release", expected, lambda: release(*alias, version, "why", self._about("release")))
        if expected:
            # Its receipt names no run of the line, and the version that the alias has.
            assert self.model.now is not None
            self.model.moves.append((self.model.now, ""))

    def _try(self, what: str, expected: bool, act: Callable[[], object]) -> None:
        """An act of a person, which is refused unless it is expected to be possible."""
        self.count += 1
        try:
            act()
        except UsageError:
            assert not expected, f"a {what} was refused"
            self.told[f"no {what}"] += 1
        else:
            assert expected, f"a {what} was made"
            self.told[what] += 1

    def _promote(self, *, races: bool) -> None:
        self.count += 1
        of, run = self.draw.randrange(CHECKPOINTS), f"run-{self.count}"
        if self.runs and self.draw.random() < 0.05:
            run, of = self.draw.choice(self.runs)  # resumed
        self.runs.append((run, of))
        gates = [Gate(self.draw.choice(["min", "max", "min_gain"]), "0") for _ in range(self.draw.choice([0, 1, 1, 2]))]
        scores = [drawn(self.draw) for _ in range(CHECKPOINTS)] if self.draw.random() < 0.1 else None
        scores = scores or alike(self.draw)
        now = None if self.model.now is None else self.model.checkpoint(self.model.now)
        gates = [bounded(self.draw, gate, scores[of], None if now is None else scores[now]) for gate in gates]
        score, forced = self.count, self.draw.random() < 0.1

        def verdict() -> str:
            return self.model.verdict(run, of, gates, scores, self.mode, forced)

        expected, race = verdict(), None
        if expected == "passes":
            version = self.model.version_of(of, score)
            race = self.draw.choice(["before", "overtaken", "unheard", "never", *[None] * 8]) if races else None
            if race == "never":
                expected = "unknown"
            elif race == "before":  # decided by the real code in the middle of the other's move, so by the model there
                expected = ""
            else:
                self._land(version, of, run)
                expected = "promoted"
        self.raced.race = None if race is None else (race, self._other)
        moves = len(self.model.moves)
        told = self._told(run, of, gates, scores, score, forced)
        self.raced.race = None
        if race == "before":
            expected = "promoted" if len(self.model.moves) == moves else verdict()
            if len(self.model.moves) == moves:
                self._land(version, of, run)
            elif expected == "passes":
                self._land(self.model.version_of(of, score), of, run)
                expected = "promoted"
        assert told == expected, (told, expected, gates, scores[of], now is not None and scores[now or 0], self.mode)
        self.told[f"{told}, {race}" if race else told] += 1

    def _land(self, version: int, of: int, run: str) -> None:
        self.model.held.pop(of, None)
        self.model.move(version, run)

    def _other(self) -> None:
        draw = self.draw.random()
        if draw < 0.3:
            self._back()
        elif draw < 0.5:
            self._release()
        else:
            self._promote(races=False)

    def _time(self, count: int) -> str:
        return (BEGAN + count * APART).isoformat()

    def _about(self, run: str) -> dict[str, Any]:
        return {"run_id": f"{run}-{self.count}", "actor": "ann", "finished": self._time(self.count)}

    def _told(self, run: str, of: int, gates: list[Gate], scores: list[Score], score: int, forced: bool) -> str:
        def evaluation(n: int) -> Evaluation:
            one = scores[n]
            metric = {"value": one.value, "mode": self.mode, "rows": one.rows, "unit": "row"}
            ref = {"uri": f"evaluations/e-{score}", "id": f"{score:064x}", "seal": f"{score:064x}"}
            return Evaluation.model_validate(
                {"ref": ref, "key": "k", "checkpoint_id": "", "dataset_ids": {}, "metrics": {"x": metric}}
            )

        def comparable(run: Run, mine: Checkpoint, told: Evaluation, theirs: Checkpoint, *_: Any) -> Any:
            return told, evaluation(theirs.step)

        spec = {
            "name": "m",
            "evaluate": {"metrics": {"x": {"logged": "x", "mode": self.mode}}},
            "promote": {"gates": [{"metric": "x", one.kind: float(one.bound)} for one in gates]},
        }
        about = {"run_id": run, "actor": "ann", "finished": self._time(self.count), "parents": []}
        of_run = make_run(self.store, run_id=run, spec=spec, started=self._time(int(run.removeprefix("run-"))))
        try:
            with (
                mock.patch.object(promote_stage, "comparable", comparable),
                mock.patch.object(Run, "provenance", return_value=about),
                mock.patch.object(Run, "with_recipe", lambda _, provenance: provenance),
            ):
                done = decide(of_run, self.checkpoints[of], None, evaluation(of), "why" if forced else None)
            return done.handoff.decision
        except OnHold:
            return "held"
        except InsufficientEvidence:
            return "evidence"
        except GateNotMet as error:
            shown = error.message.replace(",", "")
            assert "gains 0.0100" not in shown or "+0.01 was" not in shown, shown
            return "refused"
        except StorageUnavailable:
            return "unknown"


def alike(draw: random.Random) -> list[Score]:
    """Scores of all checkpoints on the same rows, or almost."""
    rows = draw.choice([0, 1, 2, 3, 7, 100, 360, 1_000, 9_999, 10_000, draw.randint(1, 10**6)])
    ratio = draw.random() < 0.7
    near = draw.randint(0, rows)
    scores = []
    for _ in range(CHECKPOINTS):
        n = rows if draw.random() < 0.97 else draw.randint(0, 20)
        scores.append(drawn(draw, n, ratio, near))
    return scores


def drawn(draw: random.Random, rows: int | None = None, ratio: bool = True, near: int = 0) -> Score:
    """One score: k of n, or a decimal, or not a number."""
    rows = draw.randint(0, 20) if rows is None else rows
    if draw.random() < 0.01:
        return Score(None, draw.choice([math.nan, math.inf, -math.inf]), rows, False)
    if ratio:
        k = min(rows, max(0, near + draw.randint(-3, 3))) if draw.random() < 0.8 else draw.randint(0, rows)
        true = Fraction(k, rows) if rows else Fraction(0)
        return Score(true, k / rows if rows else 0.0, rows, True)
    text = f"{draw.randint(0, 20)}.{draw.randint(0, 99):02d}{draw.choice(['', '1', '05', '0000001', '00000001'])}"
    true = Fraction(text)
    return Score(true, float(text), rows, rows > 0 and (true * rows).denominator == 1)


def bounded(draw: random.Random, gate: Gate, mine: Score, theirs: Score | None) -> Gate:
    """A gate whose bound is met to the last digit, or missed by the last one, more often than not."""
    if mine.true is None or draw.random() < 0.2:
        return Gate(gate.kind, draw.choice(["0", "0.01", "-0.01", "0.5", "0.95", "1e-05", "-0.0"]))
    at = mine.true
    if gate.kind == "min_gain" and theirs is not None and theirs.true is not None:
        at = draw.choice([1, -1]) * (mine.true - theirs.true)
    text = f"{float(at):.{draw.choice([2, 4, 6, 12])}g}"
    if draw.random() < 0.4:
        text = repr(float(text) + draw.choice([1, -1]) * 10.0 ** -draw.choice([2, 4, 6, 9]))
    return Gate(gate.kind, repr(float(text)))


def decisions(number: int, seed: int, backend: Callable[[], Any] = Memory) -> Counter[str]:
    """How often each answer was given in `number` acts, in worlds of 40; AssertionError at a disagreement."""
    told: Counter[str] = Counter()
    for start in range(0, number, 40):
        world = World(seed * 1_000_003 + start, backend())
        with _named(seed, start):
            for _ in range(min(40, number - start)):
                world.step()
        told += world.told
    return told


@contextlib.contextmanager
def _named(seed: int, start: int) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, world {start}: {error}") from error


if __name__ == "__main__":
    asked, began = int(sys.argv[1]), time.process_time()
    counts = decisions(asked, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(json.dumps({"acts": asked, "disagreements": 0, "processor_s": round(time.process_time() - began), **counts}))
