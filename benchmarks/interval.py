"""How much more time the chosen checkpoint interval loses than the best one, by simulation.

    python benchmarks/interval.py [--quick]

Each case has a stall, a number of nodes and their failures: exponential, and Weibull with a shape below 1 (machines
that fail early) and above 1 (machines that wear out), each node renewed when it fails. Trainings are simulated event by
event over a grid of intervals, all with the same failures; the loss of the interval that `infra.usage` chooses is
compared with the least loss on the grid. In `learnt`, the mean time between failures is not given, but learnt from as
many failures as ten trainings saw. A ratio of 1 is the best; at least 0.95 is promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from common import arguments, machine

from infra.usage import DAY_S, expected_loss, interval, node_mtbf

SHAPES = {"exponential": 1.0, "Weibull 0.7": 0.7, "Weibull 1.5": 1.5}
RESTART_S = 180.0


@dataclass(frozen=True)
class Case:
    """A gang: the stall of a checkpoint, the nodes, their mean time between failures, and the distribution's shape."""

    stall_s: float
    nodes: int
    node_mtbf_s: float
    shape: float


CASES = [
    Case(stall_s, nodes, days * DAY_S, shape)
    for stall_s, nodes, days in [(0.5, 1, 1), (2.0, 8, 150), (20.0, 64, 150), (60.0, 512, 75), (5.0, 16, 2)]
    for shape in SHAPES.values()
]


def failure_times(case: Case, draw: np.random.Generator, failures: int) -> np.ndarray:
    """When the gang's nodes fail, in seconds of the pool's time; they have been at work for long before."""
    scale_s = case.node_mtbf_s / math.gamma(1 + 1 / case.shape)
    each = int(failures / case.nodes) + 40
    gaps = scale_s * draw.weibull(case.shape, (case.nodes, each + 40))
    times = np.cumsum(gaps, axis=1)
    begin = times[:, 20].max() if case.nodes > 1 else times[0, 20]
    end = times[:, -1].min()
    return np.sort(times[(times > begin) & (times < end)]) - begin


def lost_share(every_s: float, case: Case, times: np.ndarray) -> float:
    """The share of the time that is lost with an interval, until the last failure of `times`."""
    at = worked_s = 0.0
    for fails in times:
        if fails > at:
            saved = math.floor((fails - at) / every_s)
            worked_s += saved * (every_s - case.stall_s)
        # A failure while the gang restarts makes it restart again.
        at = fails + RESTART_S
    return 1 - worked_s / float(times[-1])


def least(case: Case, times: np.ndarray, around_s: float) -> tuple[float, float]:
    """The least loss on a grid of intervals, and its interval."""
    grid = [around_s * 1.1**place for place in range(-24, 25) if around_s * 1.1**place > case.stall_s]
    return min((lost_share(every_s, case, times), every_s) for every_s in grid)


def learnt(case: Case, draw: np.random.Generator) -> float:
    """The interval from the failures of ten trainings, each as long as a third of the gang's time between failures."""
    seconds = 10 / 3 * case.node_mtbf_s / case.nodes
    times = failure_times(case, draw, 400)
    seen = int((times < seconds).sum())
    return interval(case.stall_s, node_mtbf(seen, seconds * case.nodes) / case.nodes)


def main() -> None:
    """Print the table and the ratios."""
    options = arguments(__doc__)
    failures = 4_000 if options.quick else 40_000
    draw = np.random.default_rng(20_261_125)
    print(machine())
    print(f"{failures:,} failures each; losses in % of the time\n")
    print("stall s  nodes  node MTBF d  shape  interval s  loss  expected  best  at s   ratio  learnt: loss  ratio")
    ratios: list[float] = []
    learnt_ratios: list[float] = []
    for case in CASES:
        times = failure_times(case, draw, failures)
        every_s = interval(case.stall_s, case.node_mtbf_s / case.nodes)
        loss = lost_share(every_s, case, times)
        best, at_s = least(case, times, every_s)
        best = min(best, loss)
        later = [lost_share(learnt(case, draw), case, times) for _ in range(20)]
        expected = expected_loss(every_s, case.stall_s, case.node_mtbf_s / case.nodes, RESTART_S)
        ratios.append(best / loss)
        learnt_ratios.append(best / float(np.mean(later)))
        print(
            f"{case.stall_s:7.1f} {case.nodes:6} {case.node_mtbf_s / DAY_S:12.0f} {case.shape:6.1f} {every_s:11.0f} "
            f"{100 * loss:5.2f} {100 * expected:9.2f} {100 * best:5.2f} {at_s:6.0f} {ratios[-1]:7.3f} "
            f"{100 * float(np.mean(later)):13.2f} {learnt_ratios[-1]:6.3f}"
        )
    import json

    print(json.dumps({"interval_loss": round(min(ratios), 4), "interval_learnt": round(min(learnt_ratios), 4)}))


if __name__ == "__main__":
    main()
