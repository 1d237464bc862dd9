"""The verdict on each fault of a game day, and whether every promise was kept; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from tasks.gameday.faults import Fault
from tasks.gameday.timeline import Timeline

# In a measured time, until records are written and looked at.
MEASURING_S = 1.0
Verdict = Literal[
    "as promised", "slower than promised", "not as promised", "not recovered", "not injected", "not tried"
]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a fault.

    Attributes:
        why: a clause on a verdict other than `as promised`; else "".
        where: what was struck, such as `rank 1 of node 0 (gpu-7), after step 15`.
        at: when, UTC; noticed_s, recovered_s: after it, until the cause was named, and until the first step.
        limit_s: in which time it must be noticed; None: without a number.
        lost_steps: steps that were taken twice; lost_node_s: paid seconds until the first new step, over all nodes.
        same_weights: whether the final weights are those of a training without a fault; None: not promised.
    """

    fault: str
    what: str
    verdict: Verdict
    why: str = ""
    where: str = ""
    at: str = ""
    cause: str = ""
    limit_s: float | None = None
    noticed_s: float | None = None
    recovered_s: float | None = None
    lost_steps: int | None = None
    lost_node_s: float | None = None
    same_weights: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The outcome, for a program."""
        return asdict(self)


def not_tried(fault: Fault, why: str) -> Outcome:
    """The outcome of a fault that this pipeline or its store does not allow."""
    return Outcome(fault.name, fault.what, "not tried", why)


def not_injected(fault: Fault, why: str) -> Outcome:
    """The outcome of a fault that was to be injected, and that came to nothing."""
    return Outcome(fault.name, fault.what, "not injected", why)


def judged(
    fault: Fault, times: Timeline, *, failure: str, limit_s: float | None, nodes: int, same_weights: bool | None
) -> Outcome:
    """The outcome of a training with a fault.

    Args:
        failure: why the training did not end well; "" if it did.
        limit_s: in which time the fault must be noticed.
        nodes: of the training, which are all paid.
        same_weights: None if the weights are not to be compared.
    """
    struck = times.injected
    if struck is None:
        return not_injected(fault, failure or "no checkpoint was committed before the training ended")
    verdict, why = _verdict(fault, times, failure, limit_s, same_weights)
    return Outcome(
        fault=fault.name,
        what=fault.what,
        verdict=verdict,
        why=why,
        where=f"rank {struck.rank} of node {struck.node} ({struck.host}), after step {struck.step}",
        at=datetime.fromtimestamp(times.injected_at, UTC).isoformat(timespec="seconds"),
        cause=times.cause,
        limit_s=limit_s,
        noticed_s=_rounded(times.noticed_s),
        recovered_s=_rounded(times.recovered_s),
        lost_steps=times.lost_steps,
        lost_node_s=None if times.caught_up_s is None else round(times.caught_up_s * nodes, 1),
        same_weights=same_weights,
    )


def _verdict(
    fault: Fault, times: Timeline, failure: str, limit_s: float | None, same_weights: bool | None
) -> tuple[Verdict, str]:
    if failure or times.recovered_s is None:
        return "not recovered", failure or "the training ended without a step after the fault"
    if times.noticed_s is None:
        return "not as promised", "nothing in the records shows that it was noticed"
    if fault.causes and times.cause not in fault.causes:
        return "not as promised", f"the cause named is {times.cause}, not {' or '.join(fault.causes)}"
    if same_weights is False:
        return "not as promised", "the final weights are not those of a training without a fault"
    if limit_s is not None and times.noticed_s > limit_s + MEASURING_S:
        return "slower than promised", f"noticed after {times.noticed_s:.1f} s, promised are {limit_s:g} s"
    return "as promised", ""


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def broken(outcomes: Sequence[Outcome]) -> list[str]:
    """The faults whose promise was not kept, or not tried although it was to be."""
    return [one.fault for one in outcomes if one.verdict not in ("as promised", "not tried")]


def kept_all(outcomes: Sequence[Outcome]) -> bool:
    """Whether every promise that was to be tried was kept, and at least one was tried."""
    return not broken(outcomes) and any(one.verdict == "as promised" for one in outcomes)
