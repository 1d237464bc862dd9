"""The checkpoint interval that loses least, as pure functions of a checkpoint's stall and the failures of nodes.

An interval is the time between the starts of two checkpoints, as `train.checkpoint.every_s` is.

J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (9), 1974.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22 (3), 2006.
"""

from __future__ import annotations

import math

DAY_S = 86_400.0
# What is expected of a node of which no failure is recorded: one failure in 150 node-days, in the range that large
# clusters of GPUs report (6.5 and 2.3 failures in 1,000 node-days: A. Kokolis et al., "Revisiting Reliability in
# Large-Scale Machine Learning Research Clusters", 2025). The truth may be ten times more or less (one sigma).
PRIOR_NODE_MTBF_S = 150 * DAY_S
_SIGMA = math.log(10)
# The rates over which the belief is averaged: this many sigmas either way, and points per sigma.
_SIGMAS, _POINTS = 6, 40


def interval(stall_s: float, mtbf_s: float) -> float:
    """Seconds between two checkpoints with which least time is expected to be lost (Daly 2006, equation 37, with the
    stall included). The time of a restart has no part in it.

    Args:
        stall_s: how long the steps wait for one checkpoint.
        mtbf_s: mean time between failures of the whole gang; infinite if it never fails.
    """
    _check(stall_s, mtbf_s)
    if math.isinf(mtbf_s):
        return math.inf
    if stall_s >= 2 * mtbf_s:
        return mtbf_s + stall_s
    part = stall_s / (2 * mtbf_s)
    return math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9)


def expected_loss(interval_s: float, stall_s: float, mtbf_s: float, restart_s: float) -> float:
    """The share of the time that is expected to be lost: checkpoints, restarts, and steps done again.

    Failures come at random (exponential), also while a checkpoint is saved or the gang restarts (Daly 2006, equation
    20). 1.0: no step is kept.
    """
    _check(stall_s, mtbf_s)
    worked_s = interval_s - stall_s
    if worked_s <= 0:
        return 1.0
    if math.isinf(interval_s):
        return 0.0 if math.isinf(mtbf_s) else 1.0
    if math.isinf(mtbf_s):
        return stall_s / interval_s
    exponent = (interval_s + restart_s) / mtbf_s
    if exponent > 700:  # beyond what a float holds
        return 1.0
    whole_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(interval_s / mtbf_s)
    return 1 - worked_s / whole_s


def node_mtbf(failures: int, node_seconds: float) -> float:
    """Mean time between failures of one node, from those that were recorded in so many node-seconds.

    The failure rate is believed to be log-normal around `PRIOR_NODE_MTBF_S` before anything is recorded; the answer is
    the geometric mean of the belief afterwards. So no failure in a short time says little, no failure in a long time
    gives a long but finite time, and with ten failures the prior hardly matters.
    """
    weights = []
    places = [number / _POINTS for number in range(-_SIGMAS * _POINTS, _SIGMAS * _POINTS + 1)]
    for place in places:
        rate = math.exp(place * _SIGMA) / PRIOR_NODE_MTBF_S
        weights.append(-place * place / 2 + failures * place * _SIGMA - rate * max(node_seconds, 0.0))
    highest = max(weights)
    likely = [math.exp(weight - highest) for weight in weights]
    mean = sum(place * one for place, one in zip(places, likely, strict=True)) / sum(likely)
    return PRIOR_NODE_MTBF_S * math.exp(-mean * _SIGMA)


def _check(stall_s: float, mtbf_s: float) -> None:
    if not (0 <= stall_s < math.inf and mtbf_s > 0):
        raise ValueError(f"no interval for a stall of {stall_s} s and {mtbf_s} s between failures")
