"""What the evidence for a gate, and the exposure ledger, say in plain English."""

from __future__ import annotations

import math

from data_contracts.pipeline_spec import GateSpec
from data_contracts.records import Evidence
from tasks.evidence.decision import MOST_EFFORT, Spent, comparisons_left, effort, used_up
from tasks.stages.gates.gates import subject

# Smaller values are shown with two digits of their own.
_SMALL = 0.01


def gate_sentence(gate: GateSpec, evidence: Evidence, values: tuple[float, float | None]) -> str:
    """What the evidence says, in one sentence without its full stop.

    Args:
        values: of the candidate and of the champion; None if it is not compared with.
    """
    estimate, low, high = evidence.estimate, evidence.low, evidence.high
    rows = f"{evidence.rows:,} rows" + ("" if evidence.units is None else f" of {evidence.units:,} units")
    rows += "" if evidence.batches is None else f" in {evidence.batches:,} batches"
    mine, theirs = values
    within = f"{100 * evidence.confidence:.6g} % interval"
    if theirs is None:
        seen = f"{subject(gate)} is {_decimal(mine)} on {rows} ({within} {_decimal(low)} to {_decimal(high)})"
    else:
        seen = (
            f"{subject(gate)} is {_decimal(mine)} against the champion's {_decimal(theirs)} on the same {rows}: it "
            f"{'gains' if estimate >= 0 else 'loses'} {_decimal(abs(estimate))} "
            f"({within} {_signed(low)} to {_signed(high)})"
        )
    wanted = _wanted(gate)
    if evidence.verdict == "better":
        what = f"which shows {wanted}"
    elif evidence.verdict == "worse":
        asked = f", which was {wanted}" if gate.margin is None else f": it may lose less than {gate.threshold:g}"
        return f"{seen}, worse than asked for{asked}"
    else:
        what = f"insufficient evidence {'of ' if gate.margin is None else ''}{wanted}"
    return f"{seen}, {what} ({_probability(evidence)}){_needed(evidence, 'value' if theirs is None else 'gain')}"


def sealed_sentence(gate: GateSpec, met: bool, rows: int, gates: int) -> str:
    """The sentence that a gate on a sealed set may reveal; `gates` are on sealed sets."""
    if not met and gates > 1:
        return f"{subject(gate)}: the rows of sealed sets do not show all that the {gates} gates on them ask for"
    shown = "show" if met else "do not show"
    return f"{subject(gate)}: the sealed set's {rows:,} rows {shown} {_wanted(gate)}"


def _wanted(gate: GateSpec) -> str:
    if not gate.compares:
        return f"a value {'above' if gate.min is not None else 'below'} {gate.threshold:g}"
    return f"a gain above {gate.threshold:g}" if gate.margin is None else f"that it loses less than {gate.threshold:g}"


def _probability(evidence: Evidence) -> str:
    before = _whole(evidence.comparisons)
    after = "" if not before else f" after {before:,} {'comparison' if before == 1 else 'comparisons'} on these rows"
    return f"p = {evidence.p_value:.2g}; accepted is at most {evidence.level:.2g}{after}"


def _needed(evidence: Evidence, measured: str) -> str:
    if evidence.verdict != "insufficient":
        return ""
    if evidence.rows_needed is None:
        return f"; with this {measured}, no number of rows would show it"
    return f"; about {_rounded(evidence.rows_needed):,} fresh rows would show it"


def used_up_sentence(spent: Spent, rows: int) -> str:
    """What to do about rows that are used up."""
    return (
        f"the test rows are used up: they have decided {_so_far(spent)}, and could only show gains more than "
        f"{MOST_EFFORT:g} times as large as fresh rows could; take {rows:,} fresh test rows"
    )


def ledger_sentence(spent: Spent, confidence: float, rows: int) -> str:
    """What the rows have decided and can still decide, for a plan or a report."""
    alpha = 1 - confidence
    if used_up(alpha, spent):
        return used_up_sentence(spent, rows)
    if not spent.comparisons:
        return f"the {rows:,} test rows have decided nothing yet"
    left = comparisons_left(alpha, spent)
    many = f"about {_rounded(left):,}" if left < 10_000 else "more than 10,000"
    return (
        f"the {rows:,} test rows have decided {_so_far(spent)}: a gain must be {effort(alpha, spent):.2f} times as "
        f"large as on fresh rows, and {rows:,} fresh rows are due after {many} more comparisons"
    )


def _so_far(spent: Spent) -> str:
    comparisons, promotions = _whole(spent.comparisons), _whole(spent.promotions)
    better = f" ({promotions:,} in a candidate's favour)" if promotions else ""
    return f"{comparisons:,} {'comparison' if comparisons == 1 else 'comparisons'}{better}"


def _whole(count: float) -> int:
    return math.ceil(count - 1e-9)


def _decimal(value: float) -> str:
    return f"{value:.4f}" if value == 0 or abs(value) >= _SMALL else f"{value:.2g}"


def _signed(value: float) -> str:
    sign = "−" if value < 0 else "+"
    return f"{sign}{_decimal(abs(value))}"


def _rounded(rows: int) -> int:
    """A number of rows with two digits: more would say more than is known."""
    digits = max(0, len(str(rows)) - 2)
    return -(-rows // 10**digits) * 10**digits
