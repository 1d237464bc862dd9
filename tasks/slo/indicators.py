"""What was good of a run, by what an objective measures: pure functions of the ledger of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from data_contracts.executions import GangUsage
from data_contracts.rules import Objective
from tasks.slo.burn import Point
from tasks.slo.ledger import LedgerRun, blame_of

# Ends of a generation that no node and no store caused.
_PEOPLE = ("cancelled", "over_budget")


def points_of(objective: Objective, runs: Iterable[LedgerRun], now: float) -> list[Point]:
    """The points of the runs that an objective is for."""
    counted = [run for run in runs if objective.is_for(run.pipeline, run.tags, run.trigger)]
    if objective.measure == "success":
        return [_run_point(run) for run in counted if run.blame in ("nobody", "infrastructure")]
    if objective.measure == "time":
        return [point for run in counted for point in _times(run, objective.within_s, now)]
    if objective.measure == "goodput":
        return [point for run in counted for point in _goodput(run)]
    trainings = _trainings(counted)
    if objective.measure == "resumes":
        return [point for _, gang in trainings.values() for point in _resumes(gang)]
    resumed = {place: gang.first_step for place, (_, gang) in trainings.items()}
    return [point for run, gang in trainings.values() for point in _checkpoints(run, gang, resumed)]


def left_out(objective: Objective, runs: Iterable[LedgerRun]) -> dict[str, int]:
    """How many runs `success` leaves out, by why: they failed by the `user`, or a `person` ended them; `open` ones."""
    out: dict[str, int] = {}
    for run in runs if objective.measure == "success" else ():
        of_it = objective.is_for(run.pipeline, run.tags, run.trigger)
        if of_it and run.blame not in ("nobody", "infrastructure"):
            out[run.blame] = out.get(run.blame, 0) + 1
    return out


def _run_point(run: LedgerRun) -> Point:
    return Point(run.ended, float(run.blame == "nobody"), 1.0)


def _times(run: LedgerRun, within_s: float, now: float) -> Iterator[Point]:
    """A run that did its work was in time or not; one that still works is late from the moment when it should be done.

    A run that failed is not late: `success` counts it.
    """
    if run.blame == "nobody":
        yield Point(run.ended, float(run.seconds <= within_s), 1.0)
    elif run.verdict == "running":
        due = run.began + run.waited_s + within_s
        if due < now:
            yield Point(due, 0.0, 1.0)


def _goodput(run: LedgerRun) -> Iterator[Point]:
    """The node-seconds of a run, at its end, or at its last sign of life; those without a known cause are left out."""
    known = [charge for charge in run.charges if charge.cause != "unknown"]
    total = sum(charge.node_seconds for charge in known)
    if total > 0:
        yield Point(run.ended, sum(charge.node_seconds for charge in known if charge.cause == "work"), total)


def _trainings(runs: Sequence[LedgerRun]) -> dict[tuple[str, int], tuple[LedgerRun, GangUsage]]:
    """Each generation of a training once, with the first run that recorded it; of a mere sum nothing is known."""
    found: dict[tuple[str, int], tuple[LedgerRun, GangUsage]] = {}
    for run in runs:
        for gang in run.gangs:
            if gang.stage == "train" and gang.nodes and gang.ended:
                found.setdefault((gang.where, gang.generation), (run, gang))
    return found


def _checkpoints(run: LedgerRun, gang: GangUsage, resumed: Mapping[tuple[str, int], int]) -> Iterator[Point]:
    """The checkpoints that a generation saved: bad are those that were not committed, or are quarantined.

    Args:
        resumed: the step from which each generation began: the next conductor may have committed what this one left.
    """
    kept = max(gang.kept_step, resumed.get((gang.where, gang.generation + 1), 0))
    steps = run.checkpoints.get((gang.where, gang.generation), ())
    saved = max(gang.saves, len(steps))
    if not saved:
        return
    bad = sum(quarantined or step > kept for step, quarantined in steps)
    if gang.ended != "done" and kept <= gang.first_step:
        bad = saved
    yield Point(_over(gang), float(saved - bad), float(saved))


def _resumes(gang: GangUsage) -> Iterator[Point]:
    """A generation after the first one is good if it took a step or was done."""
    if gang.generation == 0:
        return
    good = gang.ended == "done" or gang.last_step > gang.first_step
    if good or (gang.ended not in _PEOPLE and blame_of(gang.ended) != "user"):
        yield Point(_over(gang), float(good), 1.0)


def _over(gang: GangUsage) -> float:
    return max(node.released for node in gang.nodes)
