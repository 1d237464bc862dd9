"""How long the paired bootstrap of a gate takes, beside SciPy's.

    python benchmarks/evidence.py [--quick]

First 10,000 resamples of 1,000,000 rows once each: an accuracy (0/1 outcomes, analytic, and as multinomial draws), a
mean of real-valued losses, and the area under the ROC curve of two models (`--quick`: 500 resamples). Then the mean and
the area on 20,000 rows with 200 resamples beside `scipy.stats.bootstrap` (paired, vectorised where the statistic is),
in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import scipy
from common import arguments, conclude, interleaved, machine, ratio, show
from noise import Watch
from scipy.stats import bootstrap

from tasks.evidence.paired_counts import PairedCounts
from tasks.evidence.ranked import Ranking
from tasks.evidence.resampling import resampled_auc, resampled_means

ROWS, PEER_ROWS, PEER_RESAMPLES = 1_000_000, 20_000, 200


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


def main() -> None:
    """Print the seconds of each kind, and the ratios to SciPy."""
    options, watch = arguments(__doc__), Watch()
    resamples = 500 if options.quick else 10_000
    print(f"{machine()}\nNumPy {np.__version__}, SciPy {scipy.__version__}")
    draw = np.random.default_rng(0)
    truth = draw.random(ROWS) < 0.3
    losses = draw.normal(0.01, 1, ROWS)
    scores = np.stack([draw.normal(size=ROWS) + skill * truth for skill in (1.0, 1.1)])
    counts = np.array([31_000, 29_000, ROWS - 60_000])
    small, few = slice(0, PEER_ROWS), PEER_RESAMPLES
    resampled_means(losses[small], 2, 0)  # compile first
    resampled_auc(scores[:, small], truth[small], 2, 0)
    print(f"\n{resamples:,} resamples of {ROWS:,} rows")
    for name, work in {
        "0/1 outcomes, analytic": lambda: PairedCounts(31_000, 29_000, ROWS).interval(0.95),
        "0/1 outcomes, resampled": lambda: np.random.default_rng(0).multinomial(ROWS, counts / ROWS, size=resamples),
        "mean of real values": lambda: resampled_means(losses, resamples, 0),
        "area under the ROC curve, two models": lambda: resampled_auc(scores, truth, resamples, 0),
    }.items():
        print(f"{name:40}{seconds(work):10.3f} s", flush=True)

    def area(one: np.ndarray, other: np.ndarray, true: np.ndarray) -> float:
        return Ranking(one, true > 0).area() - Ranking(other, true > 0).area()

    both = (*scores[:, small], truth[small].astype(float))
    mean = {"n_resamples": few, "method": "percentile", "random_state": 0}
    taken = interleaved(
        {
            "mean, ours": lambda: seconds(lambda: resampled_means(losses[small], few, 0)),
            "mean, SciPy": lambda: seconds(lambda: bootstrap((losses[small],), np.mean, batch=50, **mean)),
            "area, ours": lambda: seconds(lambda: resampled_auc(scores[:, small], truth[small], few, 0)),
            "area, SciPy": lambda: seconds(
                lambda: bootstrap(both, area, paired=True, vectorized=False, **mean)
            ),
        },
        3 if options.quick else 7,
        0.05,
    )  # fmt: skip
    in_ms = {name: [1e3 * one for one in values] for name, values in taken.items()}
    show(f"{few} resamples of {PEER_ROWS:,} rows", in_ms, "ms")
    figures = {
        "mean_vs_scipy": ratio(taken["mean, SciPy"], taken["mean, ours"]),
        "area_vs_scipy": ratio(taken["area, SciPy"], taken["area, ours"]),
    }
    conclude(figures, watch.end(), quick=options.quick)


if __name__ == "__main__":
    main()
