"""How many canaries are falsely promoted or withdrawn if one looks every night, and how many rows a true gain takes.

    python benchmarks/canary.py [--quick]

Each canary is scored on fresh rows every night, and the test is asked every night until it decides or the nights are
over. `false_better` and `false_worse` are the shares of canaries that are ever called better, or worse, though the true
gain is exactly what was asked for (the worst case), or is on the other side of it. They must be at most
α = 1 - confidence = 0.05: a setting holds if this is not rejected by an exact binomial test (5 %, one-sided). The exact
interval of the larger share is printed beside it.

Contenders, on the same draws:
- `sequential`: `tasks.evidence.sequential` with confidence 0.95.
- `z_test`: a paired z test each night on all rows until then, one-sided at 5 %.
- `fixed`: for the rows that a true gain takes: one z test at 5 %, at a number of rows that was fixed before for a power
  of 80 %, which may be looked at once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binomtest

from tasks.evidence import sequential
from tasks.evidence.significance import rows_needed

ALPHA, YEAR = 0.05, 365
NEVER = 1e9
LOOK = float(ndtri(1 - ALPHA))
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Counts:
    """Models that are right or wrong on each row.

    Attributes:
        discordance: share of the rows on which they differ.
        gain: the true one.
    """

    name: str
    rows: int
    discordance: float
    gain: float = 0.0
    bound: float = 0.0
    nights: int = YEAR

    def looks(self, draw: Generator, canaries: int) -> Iterator[tuple[Flags, Flags, Flags, Flags]]:
        """For some canaries at a time, each (canaries, nights): better and worse by our test, then by the z test."""
        shares = [(self.discordance + self.gain) / 2, (self.discordance - self.gain) / 2, 1 - self.discordance]
        for size in pieces(canaries, 50):
            nightly = draw.multinomial(self.rows, shares, size=(size, self.nights))
            won, lost, tied = np.moveaxis(np.cumsum(nightly, axis=1), -1, 0)
            above = sequential.log_capital_of_counts(won, lost, tied, self.bound) >= -np.log(ALPHA)
            below = sequential.log_capital_of_counts(lost, won, tied, -self.bound) >= -np.log(ALPHA)
            rows = won + lost + tied
            mean = (won - lost) / rows
            error = np.sqrt(np.maximum((won + lost) / rows - mean**2, 0) / rows)
            yield above, below, mean - self.bound > LOOK * error, self.bound - mean > LOOK * error


@dataclass(frozen=True)
class Numbers:
    """Models with a loss for each row: `losses` draws both models' losses, of the same mean, for a shape of rows.

    Attributes:
        gain: is subtracted from the challenger's losses.
        counted: whether the promise covers it; see `unheard_of` and `nights_apart`.
    """

    name: str
    rows: int
    losses: Callable[[Generator, tuple[int, ...]], tuple[Values, Values]]
    gain: float = 0.0
    nights: int = YEAR
    counted: bool = True
    bound: float = 0.0

    def looks(self, draw: Generator, canaries: int) -> Iterator[tuple[Flags, Flags, Flags, Flags]]:
        """As `Counts.looks`."""
        for size in pieces(canaries, max(1, 1_000_000 // (self.rows * self.nights))):
            champion, challenger = self.losses(draw, (size, self.nights, self.rows))
            gains = champion - challenger + self.gain
            total, squares = (np.cumsum(one.sum(-1), axis=1) for one in (gains, gains**2))
            reach = ever(np.maximum, champion, challenger) - ever(np.minimum, champion, challenger)
            rows = self.rows * np.arange(1, self.nights + 1)
            above, below = (
                (sequential.log_capital_of_sums(sign * total / reach, squares / reach**2) >= -np.log(ALPHA))
                & (rows >= sequential.FIRST_UNITS)
                for sign in (1, -1)
            )
            errors = np.sqrt(rows) * total / np.sqrt(np.maximum(rows * squares - total**2, 1e-300))
            yield above, below, errors > LOOK, -errors > LOOK


def ever(extreme: np.ufunc, *losses: Values) -> Values:
    """The largest or smallest loss of both models until each night, (canaries, nights)."""
    nightly = extreme(*(extreme.reduce(one, axis=-1) for one in losses))
    return np.asarray(extreme.accumulate(nightly, axis=1))


def pieces(total: int, size: int) -> Iterator[int]:
    """Sizes of pieces of `total`."""
    for start in range(0, total, size):
        yield min(size, total - start)


def normal(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """Well-behaved losses."""
    return draw.standard_normal(shape), draw.standard_normal(shape)


def heavy(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """Heavy tails on both sides: the fourth moment is infinite."""
    return np.zeros(shape), draw.standard_t(2.5, shape)


def heavier(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """Tails so heavy that not even the variance is finite."""
    return np.zeros(shape), draw.standard_t(1.5, shape)


def exponential(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """The challenger gains a little on most rows and loses much on some."""
    return np.ones(shape), draw.standard_exponential(shape)


def lognormal(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """The same with a heavy tail."""
    return np.full(shape, np.exp(1.125)), draw.lognormal(0.0, 1.5, shape)


def pareto(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """Both models' losses have an infinite variance."""
    return draw.pareto(1.5, shape), draw.pareto(1.5, shape)


def pareto_alone(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """Only the challenger's losses have: the next one may always be larger than all that were seen."""
    return np.full(shape, 2.0), draw.pareto(1.5, shape)


def rare(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """Both models fail on one row of 50. The challenger fails on one of 100 others, and gains on the rest as much."""
    which = draw.random(shape)
    both, alone = np.where(which < 0.02, 1.0, 0.0), np.where(which > 0.99, 1.0, 0.0)
    return both + 0.01, both + alone + 0.003 * draw.standard_normal(shape)


def unheard_of(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """The same where no other row shows that a loss can be so large: nothing in the first rows warns of it."""
    alone = np.where(draw.random(shape) < 0.01, 1.0, 0.0)
    return np.full(shape, 0.01), alone + 0.003 * draw.standard_normal(shape)


def users(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """Units of 1 to about 100 rows, whose losses have something in common: the sums over each."""
    sizes = draw.geometric(0.1, shape)
    return sizes * draw.standard_normal(shape), sizes * draw.standard_normal(shape)


def nights_apart(draw: Generator, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """The challenger gains or loses a tenth of a deviation on all rows of a night: they are not independent."""
    return 0.1 * draw.standard_normal((*shape[:2], 1)) + draw.standard_normal(shape), np.zeros(shape)


FALSE: list[Counts | Numbers] = [
    *(Counts("equal", rows, 0.05) for rows in (10, 100, 1_000, 10_000)),
    *(Counts("equal, seldom different", rows, 0.002) for rows in (10, 1_000)),
    *(Counts("equal, always different", rows, 1.0) for rows in (10, 1_000)),
    Counts("slightly worse", 1_000, 0.05, gain=-0.001),
    *(Counts("as much worse as the margin", rows, 0.05, gain=-0.01, bound=-0.01) for rows in (10, 1_000)),
    Counts("never better, worse by the margin", 100, 0.01, gain=-0.01, bound=-0.01),
    Counts("as much better as min_gain", 100, 0.05, gain=0.01, bound=0.01),
    *(Numbers("normal", rows, normal) for rows in (10, 100)),
    Numbers("normal", 10_000, normal, nights=6),
    *(Numbers("Student's t, 2.5 degrees", rows, heavy) for rows in (10, 100)),
    Numbers("Student's t, 1.5 degrees", 10, heavier),
    *(Numbers("exponential", rows, exponential) for rows in (1, 10, 100)),
    *(Numbers("lognormal", rows, lognormal) for rows in (10, 100)),
    Numbers("lognormal", 1_000, lognormal, nights=30),
    Numbers("Pareto, 1.5", 10, pareto),
    *(Numbers("rare losses", rows, rare) for rows in (10, 100)),
    Numbers("units of rows", 10, users),
    Numbers("slightly worse", 100, exponential, gain=-0.005),
    Numbers("unheard-of losses", 10, unheard_of, counted=False),
    Numbers("Pareto, 1.5, the challenger's alone", 10, pareto_alone, counted=False),
    *(Numbers("nights that have something in common", rows, nights_apart, counted=False) for rows in (10, 100, 1_000)),
]
POWER: list[tuple[Counts | Numbers, float]] = [
    (Counts("gain of 0.01", 300, 0.05, gain=0.01), 0.05**0.5),
    (Counts("gain of 0.03", 10, 0.05, gain=0.03), 0.05**0.5),
    (Counts("gain of 0.002", 1_000, 0.05, gain=0.002), 0.05**0.5),
    (Counts("gain of 0.05", 30, 0.2, gain=0.05), 0.2**0.5),
    (Numbers("normal, gain of 0.1 deviations", 30, normal, gain=0.1 * 2**0.5), 2**0.5),
    (Numbers("exponential, gain of 0.1 deviations", 30, exponential, gain=0.1), 1.0),
    (Numbers("exponential, gain of 0.3 deviations", 10, exponential, gain=0.3), 1.0),
]


def false_decisions(setting: Counts | Numbers, seed: int, canaries: int) -> dict[str, Any]:
    """The shares of canaries that are falsely called better, or worse."""
    counts = np.zeros(4, np.int64)
    for flags in setting.looks(np.random.default_rng([seed, 16]), canaries):
        counts += [int(one.any(axis=1).sum()) for one in flags]
    if setting.gain < setting.bound:
        counts[[1, 3]] = 0  # then "worse" is true
    most = int(max(counts[:2]))
    test = binomtest(most, canaries, ALPHA, alternative="greater")
    interval = binomtest(most, canaries, ALPHA).proportion_ci(0.95, method="exact")
    shares = dict(zip(("false_better", "false_worse", "z_test_better", "z_test_worse"), counts / canaries, strict=True))
    limits = {"low": round(interval.low, 4), "high": round(interval.high, 4)}
    return {**shares, **limits, "holds": bool(test.pvalue >= ALPHA)}


def rows_to_promotion(setting: Counts | Numbers, deviation: float, seed: int, canaries: int) -> dict[str, Any]:
    """How many rows a true gain takes, beside a test of a number of rows that was fixed before."""
    rows = []
    for better, worse, *_ in setting.looks(np.random.default_rng([seed, 17]), canaries):
        rows += [first(flags, setting.rows) for flags in better & ~np.logical_or.accumulate(worse, axis=1)]
    fixed = rows_needed(setting.gain, deviation, ALPHA) or 0
    quantiles = {f"rows_{share}": int(np.quantile(rows, share / 100, method="higher")) for share in (50, 80, 95)}
    ratio = {"vs_fixed": round(quantiles["rows_80"] / fixed, 2)}
    return {"promoted": float(np.mean(np.array(rows) < NEVER)), **quantiles, "fixed_rows_80": fixed, **ratio}


def first(flags: Flags, rows: int) -> float:
    """The rows after which a flag is set; 10**9 if never."""
    return float(rows * (flags.argmax() + 1)) if flags.any() else NEVER


def main() -> None:
    """Print one JSON line for each setting, and a last one with the worst and the typical figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    canaries = 200 if parser.parse_args().quick else 2_000
    found: list[dict[str, Any]] = []
    power: list[dict[str, Any]] = []
    for seed, setting in enumerate(FALSE):
        began = time.perf_counter()
        line = {"setting": setting.name, "rows_a_night": setting.rows, "nights": setting.nights, "canaries": canaries}
        found.append(false_decisions(setting, seed, canaries))
        print(json.dumps({**line, **found[-1], "seconds": round(time.perf_counter() - began, 1)}), flush=True)
    for seed, (setting, deviation) in enumerate(POWER):
        power.append(rows_to_promotion(setting, deviation, seed, min(canaries, 1_000)))
        print(json.dumps({"setting": setting.name, "rows_a_night": setting.rows, **power[-1]}), flush=True)
    found = [
        one for one, setting in zip(found, FALSE, strict=True) if not isinstance(setting, Numbers) or setting.counted
    ]
    print(
        json.dumps(
            {
                "false_better": max(one["false_better"] for one in found),
                "false_worse": max(one["false_worse"] for one in found),
                "all_hold": all(one["holds"] for one in found), "alpha": ALPHA,
                "false_better_z_test": max(one["z_test_better"] for one in found),
                "vs_fixed": max(one["vs_fixed"] for one in power),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
