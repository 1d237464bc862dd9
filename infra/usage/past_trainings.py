"""What past runs tell of checkpoints and failures: how long a checkpoint stops the steps, and how often nodes fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from data_contracts.costs.usage import HERE, ExecutionUsage, GangUsage

# How a generation ends that a failure of its nodes or of their conductor ended, and that lost steps. A preemption saves
# a checkpoint first, and what the user's code or a person ended fails on any node.
FAILURES = frozenset(("node_lost", "hung", "storage", "corrupt", "killed"))


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
