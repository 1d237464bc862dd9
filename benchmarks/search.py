"""What a search promises, simulated with the real code: busy slots, kept budgets, no false promotion, a good sampler.

    python benchmarks/search.py [--quick]

- `busy`: 1,000 trials of 10 to 1,000 seconds, log-uniform, in 64 slots, carried out by `Search` on a clock of its own.
  The clock also counts the processor time of the search itself and 30 ms for each event that it stores, but not what it
  takes to check values or to start a process. `busy_pruning`: the search also looks at all running trials once a
  second, with requests of 30 ms to the store. `busy_batches`: the same in batches of 64 that wait for their slowest.
- `overruns`: histories of searches with a budget of hours. Trials reserve and settle in the real ledger as
  `tasks.budgets` does; the search is killed at random moments, with some of its trials, and continued. The records of
  what a killed trial used are exact here, and a trial that must end does so within the time that is reserved for it:
  12 s of an interval of 60 s. Beside it: trials that need up to 45 s.
- `false_years`: each night 20 candidates; after five, each is a change of the best so far on validation rows. None is
  better than the champion (true gain 0, the worst case). The best on validation rows is compared on one test set.
  `by_test`: the best on the test rows is compared. Gates as in gate.py; `evidence` counts 20 comparisons a night.
- `power`: one candidate of the twenty gains one point; it is chosen on as many validation rows as there are test rows.
- `vs_optuna`: eight functions, each the scores of a scikit-learn estimator on a grid, recorded first. A score is the
  geometric mean of the right class's probability on validation rows. Our study, Optuna's sampler by itself and random
  values have equal numbers of trials. `node_seconds`: of the trials until one is within 1 % of the grid's best, as a
  share of the grid's; a search that does not come so near counts with all its trials.
"""

from __future__ import annotations

import heapq
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import optuna
import scipy
import sklearn
from common import arguments, machine, scratch
from gate import DISAGREE, NIGHTS, ROWS, Gate, evidence, plain, z_test
from numpy.random import Generator
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution
from optuna.samplers import TPESampler
from scipy.stats import binomtest, wilcoxon
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from data_contracts.executions import ExecutionUsage, GangUsage, NodeUsage
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.pipeline_spec.search import SearchSpec, Value
from data_contracts.pipeline_spec.train import SelectSpec
from data_contracts.run_report import RunReport
from data_contracts.searches import TAG, SearchEvent, SearchRecord
from infra.budgets import Executed
from infra.store import Lease, Store, layout, open_store
from infra.store.lease import LeaseKeeper, with_process
from tasks.budgets import ALL, HOUR_S, BudgetPeriod, budgets_of_search, settle_others
from tasks.search import search as searches
from tasks.search.search import Search, Trial, TrialProcess
from tasks.search.study import Study

AT = "2026-11-30T00:00:00+00:00"
SLOTS, REQUEST_S = 64, 0.03
# So many requests does `TrialProcess.values` make for a training that has a checkpoint.
LOOK_REQUESTS = 3
# Seconds of all its nodes that a trial reserves ahead, and how late its renewals are at most.
EVERY_S, LATE_S = 60.0, 2.0
CANDIDATES, GAIN, WITHIN = 20, 0.01, 30
Counts = NDArray[np.int64]


def record(space: Mapping[str, object], trials: int, **spec: Any) -> SearchRecord:
    """A search for the largest score."""
    budget = {"trials": trials, **spec.pop("budget", {})}
    section = SearchSpec.model_validate({"space": space, "budget": budget, **spec})
    select = SelectSpec(metric="score", mode="max")
    return SearchRecord(name="s", pipeline="p", spec=section, select=select, decides="", window=None, begun=AT)


# ---- busy


@dataclass
class Clock:
    """The search's `time`: sleeping only moves it, and so does the search's own work."""

    now: float = 0.0
    worked: float = field(default_factory=time.process_time)

    def monotonic(self) -> float:
        """The time, with the work since the last sleep."""
        return self.now + time.process_time() - self.worked

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.now, self.worked = self.monotonic() + seconds, time.process_time()


class TimedTrial:
    """Stands in for the process of a trial, which takes some seconds of the clock and gives a value."""

    def __init__(self, clock: Clock, seconds: float, value: float) -> None:
        self._clock, self._value, self.is_stopped = clock, value, False
        self.began = clock.monotonic()
        self.ends = self.began + seconds

    def stop(self) -> None:
        """It has ended before the search does."""

    def ended(self) -> dict[str, Any] | None:
        """Its run's report, once its time is over."""
        if self._clock.monotonic() < self.ends:
            return None
        about = {"run_id": "r", "pipeline": "p", "exit_code": 0, "sentence": "", "stages": []}
        return RunReport.from_json({"verdict": "trained", **about}).to_json()

    def handed_over(self) -> Checkpoint:
        """Its checkpoint, with its value."""
        ref = Ref(uri="trainings/k-0/checkpoints/1-g0", id="0" * 64, seal="0" * 64)
        return Checkpoint(
            ref=ref, metrics={"score": self._value}, key="k", training="trainings/k-0", step=1, epoch=0, generation=0,
            world_size=1,
        )  # fmt: skip

    def values(self, metric: str) -> list[float]:
        """It says nothing until its end; to ask takes time."""
        self._clock.now += LOOK_REQUESTS * REQUEST_S
        return []

    def inputs_digest(self, with_data: bool) -> str:
        """The same for all."""
        return "same"


def busy(store: Store, trials: int, **spec: Any) -> tuple[float, float]:
    """The share of slot-time that is busy until the last trial begins: of a search, and in batches with a barrier."""
    seconds = np.exp(np.random.default_rng(1).uniform(math.log(10), math.log(1000), trials))
    clock, started = Clock(), list[TimedTrial]()
    space = {"train.lr": {"min": 1e-5, "max": 1.0, "log": True}, "train.width": {"min": 8, "max": 512}}

    def start(trial: Trial) -> TrialProcess:
        value = -abs(math.log10(float(trial.settings["train.lr"])) + 3)
        started.append(TimedTrial(clock, float(seconds[trial.number]), value))
        return started[-1]  # type: ignore[return-value]

    def stored(trial: Trial, search: Search) -> None:
        clock.now += REQUEST_S

    keeper = LeaseKeeper(store, layout.search_lease("s"), "search s")
    with patch.object(searches, "time", clock):
        Search(store, record(space, trials, parallel=SLOTS, **spec), start, on_change=stored).carry_out(keeper)
    last = started[-1].began
    of_search = sum(min(one.ends, last) - one.began for one in started) / (SLOTS * last)
    batches = [seconds[first : first + SLOTS] for first in range(0, trials - SLOTS, SLOTS)]
    return of_search, sum(one.sum() for one in batches) / (SLOTS * sum(one.max() for one in batches))


# ---- overruns


@dataclass
class Execution:
    """One execution of a trial's run, from its start to its end: that of its work, or of its budget."""

    who: Executed
    nodes: int
    began: float
    ends: float
    lease: Lease

    def hours(self, now: float) -> float:
        """What it has used."""
        return self.nodes * (now - self.began) / HOUR_S


class History:
    """A search on a clock of its own whose trials share a budget of hours in a store."""

    def __init__(self, store: Store, seed: int, stop_s: float) -> None:
        self._store, self._stop_s, self._draw = store, stop_s, np.random.default_rng([seed, 17])
        self.limit = float(self._draw.uniform(0.05, 0.5))
        searched = record({"train.lr": {"min": 0.0, "max": 1.0}}, 1000, budget={"hours": self.limit})
        [(name, budget)] = budgets_of_search(searched).items()
        self.period = BudgetPeriod(name, budget, ALL)
        self.ledger = self.period.ledger(store)
        self.used, self.kills, self._number, self._live = 0.0, 0, 0, list[Execution]()

    def carry_out(self) -> None:
        """Start and kill trials until the budget is used and none works."""
        draw, now, over = self._draw, 0.0, False
        parallel, kill_at = int(draw.integers(1, 9)), float(draw.exponential(300))
        due: list[tuple[float, str, Execution]] = []
        again: list[tuple[str, int, float]] = []
        while True:
            while len(self._live) < parallel and not over:
                self._number += 1
                seconds = math.exp(draw.uniform(math.log(20), math.log(2000)))
                new = (f"r{self._number}", int(draw.integers(1, 4)), seconds)
                made = self._start(*(again.pop() if again else new), now)
                if over := self._is_over(made, now):
                    self._end(made, now, is_killed=False)
                else:
                    heapq.heappush(due, (min(made.ends, now + EVERY_S / 4), made.who.key, made))
            if not self._live:
                return
            now, _, trial = heapq.heappop(due)
            if now > kill_at:
                killed = [one for one in self._live if draw.random() < 0.5]
                for one in killed:
                    self._end(one, kill_at, is_killed=True)
                again += [(one.who.run_id, one.nodes, one.ends - kill_at + 1) for one in killed]
                kill_at, self.kills, over = now + float(draw.exponential(300)), self.kills + 1, False
            if trial not in self._live:
                continue
            if now >= trial.ends:
                self._end(trial, now, is_killed=False)
                continue
            next_s = EVERY_S / 4 + draw.uniform(0, LATE_S)
            if self._is_over(trial, now):
                over, next_s = True, draw.uniform(0, self._stop_s)
                trial.ends = min(trial.ends, now + next_s)
            heapq.heappush(due, (min(trial.ends, now + next_s), trial.who.key, trial))

    def _start(self, run_id: str, nodes: int, seconds: float, now: float) -> Execution:
        lease = Lease.take(self._store, layout.lease(layout.run(run_id)), with_process(run_id))
        made = Execution(Executed(run_id, f"e{self._number}"), nodes, now, now + seconds, lease)
        self._live.append(made)
        return made

    def _is_over(self, trial: Execution, now: float) -> bool:
        """Reserve further as `Spending` does; returns whether the trial must end."""
        ahead = trial.nodes * EVERY_S / HOUR_S
        reserve = partial(self.ledger.reserve, trial.who, trial.hours(now), ahead, self.limit)
        held, _ = reserve()
        if held < ahead and settle_others(self._store, self.period, self.ledger, trial.who):
            held, _ = reserve()
        return held < ahead / 2

    def _end(self, trial: Execution, now: float, *, is_killed: bool) -> None:
        """Note what a trial used. Whoever needs the room settles one that was killed."""
        self._live.remove(trial)
        nodes = [NodeUsage(number=number, started=trial.began, released=now) for number in range(trial.nodes)]
        gang = GangUsage(stage="train", where=trial.who.key, generation=0, local=True, nodes=nodes)
        about = {"run_id": trial.who.run_id, "execution": trial.who.execution, "pipeline": "p", "model": "p"}
        times = {"began": trial.began, "ended": now, "gangs": [gang]}
        usage = ExecutionUsage.model_validate({"tags": {TAG: "s"}, "prices": {}, **about, **times})
        self._store.create_once(layout.usage(usage.run_id, usage.execution, "ended"), usage.to_json())
        trial.lease.release()
        self.used += trial.hours(now)
        if not is_killed:
            self.ledger.settle({trial.who: trial.hours(now)})


def overruns(folder: Path, histories: int, stop_s: float) -> int:
    """How many histories use more than their budget; prints that, and how far the ledger is from what was used."""
    over, kills, gap, shares = 0, 0, 0.0, list[float]()
    for seed in range(histories):
        with TemporaryDirectory(dir=folder) as place:
            history = History(store := open_store(place), seed, stop_s)
            history.carry_out()
            settle_others(store, history.period, history.ledger)
            gap = max(gap, abs(history.ledger.balance().spent - history.used))
        shares.append(history.used / history.limit)
        over, kills = over + (shares[-1] > 1 + 1e-9), kills + history.kills
    print(
        f"{histories:,} searches with {kills:,} kills, trials end within {stop_s:g} s: {over} use more than their hours"
    )
    print(f"  used: median {np.median(shares):.1%}, most {max(shares):.2%}; the ledger is off by {gap * HOUR_S:.2g} s")
    return over


# ---- false years and power


def nightly(draw: Generator, rows: int, nights: int, *, gain: float, fresh: int) -> Counts:
    """On how many validation and test rows (axis 0) the candidates (2) of each night (3) win and lose (1).

    Args:
        gain: of the first candidate; the others gain nothing.
        fresh: so many are independent; the later ones keep half of what the best so far on validation rows has.
    """
    right = draw.binomial(rows, 0.9, size=2)
    of_rows, night = np.stack([rows - right, right], axis=1)[:, :, None], np.arange(nights)
    found = np.zeros((2, 2, CANDIDATES, nights), np.int64)
    for number in range(CANDIDATES):
        gains = 0.0 if number else gain
        share = np.array([[(DISAGREE + gains) / 2 / 0.1], [(DISAGREE - gains) / 2 / 0.9]])
        if number < fresh:
            found[:, :, number] = draw.binomial(of_rows, share, size=(2, 2, nights))
            continue
        best = np.argmax(found[0, 0, :number] - found[0, 1, :number], axis=0)
        kept = found[:, :, best, night]
        found[:, :, number] = draw.binomial(kept, 0.5) + draw.binomial(of_rows - kept, share / 2 / (1 - share))
    return found


def promotions(draw: Generator, gate: Gate, found: Counts, chosen: Counts, start: int = 0) -> list[int]:
    """The candidates that the gate finds better; it counts all candidates of the nights before, `start` and more."""
    won, lost = found[1][:, chosen, np.arange(len(chosen))]
    return [
        int(candidate)
        for night, candidate in enumerate(chosen)
        if gate(draw, int(won[night]), int(lost[night]), CANDIDATES * (start + night + 1) - 1, 0)
    ]


def false_years(years: int) -> dict[str, float]:
    """Simulate and print the share of years with a false promotion, by gate and by what the candidate is chosen."""
    gates: dict[str, Gate] = {"evidence": evidence, "z_test": z_test, "point_estimate": plain}
    false = {f"{name}{by}": 0 for by in ("", "_by_test") for name in gates}
    for seed in range(years):
        draw = np.random.default_rng([seed, 18])
        found = nightly(draw, ROWS, NIGHTS, gain=0.0, fresh=5)
        for rows, by in enumerate(("", "_by_test")):
            chosen = np.argmax(found[rows, 0] - found[rows, 1], axis=0)
            for name, gate in gates.items():
                false[f"{name}{by}"] += bool(promotions(draw, gate, found, chosen))
    print(f"\n{years:,} years of {NIGHTS} nights, {CANDIDATES} candidates each, {ROWS:,} test rows: a false promotion")
    for name, count in false.items():
        most = binomtest(count, years, alternative="less").proportion_ci(0.95).high
        print(f"  {name:24}{count / years:8.2%}   at most {most:.2%} (exact binomial bound, 95 %)")
    return {f"false_years_{name}".removesuffix("_evidence"): count / years for name, count in false.items()}


def power(years: int) -> dict[str, float]:
    """Simulate and print how often a gain of one point is promoted, by rows and by the nights before."""
    figures: dict[str, float] = {}
    print(f"\none candidate of {CANDIDATES} gains {GAIN}: the share promoted within {WITHIN} nights")
    for rows, start in product((2_000, 5_000, 10_000, 20_000), (0, NIGHTS - WITHIN)):
        promoted = 0
        for seed in range(years):
            draw = np.random.default_rng([seed, 19])
            found = nightly(draw, rows, WITHIN, gain=GAIN, fresh=CANDIDATES)
            chosen = np.argmax(found[0, 0] - found[0, 1], axis=0)
            promoted += 0 in promotions(draw, evidence, found, chosen, start)
        figures[f"power_{rows}_after_{start}"] = promoted / years
        print(f"  {rows:7,} test rows, after {start:3} nights: {promoted / years:.1%} of {years:,}")
    return figures


# ---- against Optuna


@dataclass(frozen=True)
class Grid:
    """A function of some values, known on a grid: its score, and the seconds that it took."""

    name: str
    values: Mapping[str, list[float]]
    scores: NDArray[np.float64]
    seconds: NDArray[np.float64]

    @property
    def space(self) -> dict[str, dict[str, object]]:
        """As a search has it: all values between the least and the largest, by their logarithms."""
        return {
            f"train.{name}": {"min": float(ours[0]), "max": float(ours[-1]), "log": True}
            for name, ours in self.values.items()
        }

    def place(self, settings: Mapping[str, Value]) -> tuple[int, ...]:
        """The nearest point of the grid."""
        return tuple(
            int(np.argmin(np.abs(np.log(ours) - math.log(float(settings[f"train.{name}"])))))
            for name, ours in self.values.items()
        )


# Estimators with the values of their grids. Of forests, few trees; perceptrons learn for 20 epochs.
KINDS: dict[str, tuple[Callable[..., Any], dict[str, list[float]]]] = {
    "forest": (
        partial(RandomForestClassifier, random_state=0),
        {"n_estimators": [5, 10, 20, 40], "min_samples_leaf": [1, 2, 4, 8, 16], "max_features": [0.1, 0.2, 0.4, 0.8]},
    ),
    "perceptron": (
        partial(MLPClassifier, max_iter=20, random_state=0),
        {
            "learning_rate_init": [float(one) for one in np.logspace(-4, -1, 7)],
            "hidden_layer_sizes": [8, 16, 32, 64],
            "alpha": [1e-5, 1e-2, 10.0],
        },
    ),
}


def recorded(data: str, kind: str) -> Grid:
    """Fit an estimator with each point of a grid."""
    estimator, values = KINDS[kind]
    x, y = getattr(datasets, f"load_{data}")(return_X_y=True)
    x_fit, x_val, y_fit, y_val = train_test_split(x, y, test_size=1 / 3, random_state=0, stratify=y)
    scaler = StandardScaler().fit(x_fit)
    shape = tuple(len(ours) for ours in values.values())
    scores, seconds = np.zeros(shape), np.zeros(shape)
    for place in np.ndindex(shape):
        began = time.process_time()
        model = estimator(**{name: ours[n] for (name, ours), n in zip(values.items(), place, strict=True)})
        model.fit(scaler.transform(x_fit), y_fit)
        right = model.predict_proba(scaler.transform(x_val))[np.arange(len(y_val)), y_val]
        scores[place] = np.exp(np.log(np.clip(right, 1e-3, 1)).mean())
        seconds[place] = time.process_time() - began
    return Grid(f"{data}, {kind}", values, scores, seconds)


def by_study(sampler: str, grid: Grid, seed: int) -> Iterator[Mapping[str, Value]]:
    """The values that our study tries, one after another."""
    study = Study(record(grid.space, 1000, sampler=sampler, seed=seed), [])
    while (asked := study.ask()) is not None:
        number, settings = asked
        yield settings
        value = float(grid.scores[grid.place(settings)])
        study.take(SearchEvent(kind="ended", trial=number, at=AT, state="finished", value=value))


def by_optuna(grid: Grid, seed: int) -> Iterator[Mapping[str, Value]]:
    """The values that Optuna tries by itself."""
    sampler = TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    space = {f"train.{name}": FloatDistribution(ours[0], ours[-1], log=True) for name, ours in grid.values.items()}
    while True:
        trial = study.ask(dict(space))
        yield trial.params
        study.tell(trial, float(grid.scores[grid.place(trial.params)]))


SEARCHERS: dict[str, Callable[[Grid, int], Iterator[Mapping[str, Value]]]] = {
    "ours": partial(by_study, "tpe"),
    "optuna": by_optuna,
    "random": partial(by_study, "random"),
}


def searched(grid: Grid, values: Iterator[Mapping[str, Value]]) -> tuple[float, float]:
    """By how much the best of 30 trials lacks the grid's best, in %, and the share of node-seconds, of at most 60."""
    places = [grid.place(settings) for settings in islice(values, 60)]
    scores, best = np.array([grid.scores[place] for place in places]), grid.scores.max()
    cost = np.cumsum([grid.seconds[place] for place in places]) / grid.seconds.sum()
    near = np.flatnonzero(scores >= 0.99 * best)
    return 100 * float(1 - scores[:30].max() / best), float(cost[near[0] if len(near) else -1])


def vs_optuna(names: tuple[str, ...], seeds: int) -> dict[str, float]:
    """Record the functions and search each; print what the best of 30 trials lacks, and the share of node-seconds."""
    began = time.process_time()
    grids = [recorded(*one) for one in product(names, KINDS)]
    print(f"\n{len(grids)} functions, recorded in {time.process_time() - began:.0f} s of processor time; {seeds} seeds")
    print("  what the best of 30 trials lacks of the grid's best; node-seconds, as a share of the grid's")
    found = {name: np.zeros((len(grids), seeds, 2)) for name in SEARCHERS}
    for number, grid in enumerate(grids):
        for name, search in SEARCHERS.items():
            found[name][number] = [searched(grid, search(grid, seed)) for seed in range(seeds)]
        means = {name: ours[number].mean(axis=0) for name, ours in found.items()}
        shown = "   ".join(f"{name} {lacks:5.2f} %, {share:4.0%}" for name, (lacks, share) in means.items())
        print(f"  {grid.name:27} {shown}", flush=True)
    figures: dict[str, float] = {}
    for name, ours in found.items():
        figures |= {f"lacks_{name}": float(ours[..., 0].mean()), f"node_seconds_{name}": float(ours[..., 1].mean())}
        differ = (ours - found["ours"])[..., 0].ravel()
        if name != "ours":
            figures[f"p_vs_{name}"] = float(wilcoxon(differ).pvalue) if differ.any() else 1.0
            won, lost = int((differ > 0).sum()), int((differ < 0).sum())
            print(f"  ours beside {name}: better {won}, equal {len(differ) - won - lost}, worse {lost}; ", end="")
            print(f"Wilcoxon's p = {figures[f'p_vs_{name}']:.3g}")
    return figures


def main() -> None:
    """Simulate, print tables and, as the last line, the figures as JSON."""
    quick = arguments(__doc__).quick
    warnings.simplefilter("ignore")  # so few epochs do not converge, and parts of Optuna are experimental
    print(machine())
    versions = {"Optuna": optuna, "NumPy": np, "SciPy": scipy, "scikit-learn": sklearn}
    print(", ".join(f"{name} {module.__version__}" for name, module in versions.items()))
    trials, histories = (200, 10) if quick else (1_000, 1_000)
    with scratch() as folder:
        share, batches = busy(open_store(str(folder / "busy")), trials)
        pruning, _ = busy(open_store(str(folder / "pruning")), trials, prune={"first": 1000})
        print(f"\n{trials:,} trials in {SLOTS} slots: {share:.1%} of slot-time is busy; in batches {batches:.1%}")
        print(f"  {pruning:.1%} if each trial is looked at for pruning, {LOOK_REQUESTS} requests a look")
        figures: dict[str, float] = {"busy": share, "busy_pruning": pruning, "busy_batches": batches}
        figures["overruns"] = overruns(folder, histories, 12.0)
        figures["overruns_slow_stop"] = overruns(folder, histories // 5, 45.0)
    figures |= false_years(50 if quick else 2_000)
    figures |= power(20 if quick else 500)
    names = ("iris", "wine") if quick else ("digits", "wine", "breast_cancer", "iris")
    figures |= vs_optuna(names, 5 if quick else 20)
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
