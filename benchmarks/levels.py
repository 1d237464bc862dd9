"""How often a gate finds a gain that is not there, at levels from 0.025 to those of rows that have decided often.

    python benchmarks/levels.py [--quick]

Each case draws test rows again and again on which two models are equally good, or a model's value is what the gate asks
for, and counts p-values below the level. A ratio of 1 is exact, below 1 is cautious, above 1 breaks the promise by so
much. `benchmarks/gate.py` simulates whole years.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
import scipy
from common import arguments, machine

from tasks.evidence.paired_scores import PairedScores
from tasks.evidence.resampled_metrics import resampled_metric
from tasks.evidence.significance import PairedCounts, PairedValues, Proportion

LEVELS = (0.025, 0.005, 0.0005)
Draw = np.random.Generator
Case = Callable[[Draw], float]


def counts(rows: int, differ: float, bound: float) -> Case:
    """0/1 outcomes of two models that differ on a share of the rows, and a true gain of `bound`."""

    def case(draw: Draw) -> float:
        won, lost, _ = draw.multinomial(rows, [(differ + bound) / 2, (differ - bound) / 2, 1 - differ])
        return PairedCounts(int(won), int(lost), rows).p_value(bound)

    return case


def share(rows: int, bound: float) -> Case:
    """One model's accuracy, which is what the gate asks for."""
    return lambda draw: Proportion(int(draw.binomial(rows, bound)), rows).p_value(bound)


def losses(rows: int, rare: float = 0.0) -> Case:
    """Differences of exponential losses; with `rare`, on so many of the rows the candidate is very wrong."""

    def case(draw: Draw) -> float:
        gains = draw.exponential(size=rows) - draw.exponential(size=rows)
        if rare:
            gains += 20 * rare - 20.0 * (draw.random(rows) < rare)
        return PairedValues(gains).p_value()

    return case


def units(number: int) -> Case:
    """Units of unequal sizes; all rows of a unit gain alike."""

    def case(draw: Draw) -> float:
        sizes = draw.geometric(0.1, number).astype(np.float64)
        return PairedValues(draw.normal(size=number) * sizes, sizes).p_value()

    return case


def one_large_unit(number: int, rows: int) -> Case:
    """Units that gain by chance, one of which has most of the rows."""

    def case(draw: Draw) -> float:
        sizes = np.full(number, 10.0)
        sizes[0] = rows
        return PairedValues(draw.normal(size=number) * sizes, sizes).p_value()

    return case


def scores(kind: str, positives: int, rows: int) -> Case:
    """Two equally good models by a metric that is no mean, with few or many positive rows."""
    metric = resampled_metric("score", f"torchmetrics.classification.{kind}", {})

    def case(draw: Draw) -> float:
        truth = (np.arange(rows) < positives).astype(np.int64)
        mine, theirs = (1 / (1 + np.exp(-(draw.normal(size=rows) + 2.5 * truth - 1.5))) for _ in range(2))
        return PairedScores(metric, "max", truth, mine, theirs).p_value()

    return case


CASES: Mapping[str, Case] = {
    "accuracy, 2,000 rows, 5 % differ, min_gain 0": counts(2_000, 0.05, 0.0),
    "accuracy, 300 rows, 5 % differ, margin 0.01": counts(300, 0.05, -0.01),
    "accuracy, 300 rows, min 0.9, alone": share(300, 0.9),
    "loss, 30 rows": losses(30),
    "loss, 1,000 rows": losses(1_000),
    "loss, 300 rows, 1 % very wrong": losses(300, rare=0.01),
    "loss, 3,000 rows, 1 % very wrong": losses(3_000, rare=0.01),
    "loss, 20 units of unequal size": units(20),
    "loss, 200 units of unequal size": units(200),
    "loss, 50 units, one with 5,000 of 5,490 rows": one_large_unit(50, 5_000),
    "recall, 2 of 1,000 positive": scores("BinaryRecall", 2, 1_000),
    "recall, 10 of 1,000 positive": scores("BinaryRecall", 10, 1_000),
    "F1, 5 of 1,000 positive": scores("BinaryF1Score", 5, 1_000),
    "AUROC, 5 of 1,000 positive": scores("BinaryAUROC", 5, 1_000),
    "AUROC, 30 of 1,000 positive": scores("BinaryAUROC", 30, 1_000),
    "AUROC, 300 of 1,000 positive": scores("BinaryAUROC", 300, 1_000),
    "F1, 30 of 1,000 positive": scores("BinaryF1Score", 30, 1_000),
    "F1, 300 of 1,000 positive": scores("BinaryF1Score", 300, 1_000),
    "average precision, 30 of 1,000 positive": scores("BinaryAveragePrecision", 30, 1_000),
}


def main() -> None:
    """Print a line for each case: how often each level was met, as a multiple of it; last, all as JSON."""
    options = arguments(__doc__)
    times = 2_000 if options.quick else 20_000
    print(f"{machine()}\nNumPy {np.__version__}, SciPy {scipy.__version__}; {times:,} times each\n")
    print(f"{'case':<48}" + "".join(f"{f'at {level:g}':>16}" for level in LEVELS))
    multiples = {}
    for name, case in CASES.items():
        draw = np.random.default_rng(1)
        found = np.array([case(draw) for _ in range(times)])
        shown = []
        for level in LEVELS:
            often = float(np.mean(found <= level))
            multiples[f"{name}, at {level:g}"] = round(often / level, 2)
            shown.append(f"{often / level:.2f} ± {2 * (max(often, level) / times) ** 0.5 / level:.2f}")
        print(f"{name:<48}" + "".join(f"{one:>16}" for one in shown), flush=True)
    print(json.dumps(multiples))


if __name__ == "__main__":
    main()
