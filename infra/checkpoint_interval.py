"""The checkpoint interval that loses least, from a checkpoint's stall and the failures of nodes that past runs tell of.

An interval is the time between the starts of two checkpoints, as `train.checkpoint.every_s` is.

J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (9), 1974.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22 (3), 2006.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from data_contracts.executions import HERE, ExecutionUsage, GangUsage

DAY_S = 86_400.0
# What is expected of a node of which no failure is recorded: one failure in 150 node-days, in the range that large
# clusters of GPUs report (6.5 and 2.3 failures in 1,000 node-days: A. Kokolis et al., "Revisiting Reliability in
# Large-Scale Machine Learning Research Clusters", 2025). The truth may be ten times more or less (one sigma).
PRIOR_NODE_MTBF_S = 150 * DAY_S
_SIGMA = math.log(10)
# The rates over which the belief is averaged: this many sigmas either way, and points per sigma.
_SIGMAS, _POINTS = 6, 40
# How a generation ends that a failure of its nodes or of their conductor ended, and that lost steps. A preemption saves
# a checkpoint first, and what the user's code or a person ended fails on any node.
FAILURES = frozenset(("node_lost", "hung", "storage", "corrupt", "killed"))


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


@dataclass(frozen=True)
class PastTrainings:
    """What the trainings of past runs tell.

    Attributes:
        failures, node_seconds: on one pool, of all pipelines.
        saves, stalled_s: checkpoints of one pipeline for which steps waited, and for how long in all.
        restarts, restarting_s: from a failure to the next step.
        steps, stepping_s: from the first step to the last, of one pipeline.
        steps_per_epoch: of its newest training that ended; 0 if unknown.
    """

    failures: int = 0
    node_seconds: float = 0.0
    saves: int = 0
    stalled_s: float = 0.0
    restarts: int = 0
    restarting_s: float = 0.0
    steps: int = 0
    stepping_s: float = 0.0
    steps_per_epoch: int = 0


def past_trainings(executions: Iterable[ExecutionUsage], pipeline: str, pool: str) -> PastTrainings:
    """What executions tell, oldest first; a generation that two of them recorded counts once.

    Args:
        pool: the work pool of the nodes that train; "" for processes of this machine.
    """
    failures = saves = restarts = steps = per_epoch = 0
    node_seconds = stalled_s = restarting_s = stepping_s = 0.0
    counted: dict[tuple[str, int], GangUsage] = {}
    for one in executions:
        price = one.prices.get("train") or one.prices.get(HERE)
        for gang in one.gangs:
            if gang.stage != "train" or not gang.ended or (gang.where, gang.generation) in counted:
                continue
            before = counted.get((gang.where, gang.generation - 1))
            counted[gang.where, gang.generation] = gang
            if ("" if gang.local else price.pool if price else "") == pool:
                node_seconds += sum(max(node.released - node.started, 0.0) for node in gang.nodes)
                failures += gang.ended in FAILURES
                lost_s = 0.0 if before is None else _between(before, gang)
                restarts, restarting_s = restarts + (lost_s > 0), restarting_s + lost_s
            if one.pipeline == pipeline:
                # The slowest node of a generation made the others wait.
                spans = [node.stopped - node.working for node in gang.nodes if node.stopped and node.working]
                spans = [gang.stepping_s] if gang.stepping_s else spans
                if gang.saves:
                    saves, stalled_s = saves + gang.saves, stalled_s + max(node.saved_s for node in gang.nodes)
                if spans and gang.last_step - gang.first_step > 1:
                    # A node works from the end of its first step that was seen.
                    steps, stepping_s = steps + gang.last_step - gang.first_step - 1, stepping_s + max(spans)
                per_epoch = gang.steps_per_epoch or per_epoch
    return PastTrainings(failures, node_seconds, saves, stalled_s, restarts, restarting_s, steps, stepping_s, per_epoch)


def _between(before: GangUsage, after: GangUsage) -> float:
    """Seconds from a generation that failed to the first step of the next; 0 if it did not fail, or without a step."""
    began = [node.working for node in after.nodes if node.working is not None]
    if before.ended not in FAILURES or not began or not before.nodes:
        return 0.0
    return max(min(began) - max(node.released for node in before.nodes), 0.0)
