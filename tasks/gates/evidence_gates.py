"""Gates with `confidence`: the rows must show the required gain over the champion, or the required value.

The exposure ledger counts how often these rows have decided before; each comparison asks for more evidence than the one
before it, so that the promise holds however often the pipeline runs. A comparison is entered in the ledger of each set
of rows before it is made. `ledger_outlook` says for a plan what the rows have decided and can still decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from data_contracts.canonical import digest
from data_contracts.errors import InsufficientEvidence
from data_contracts.handoffs import Evaluation
from data_contracts.pipeline_spec import GateSpec
from data_contracts.records import Evidence, GateResult
from infra.models import exposures, registry
from infra.models.exposures import Exposure
from infra.records.evaluations import TestRows, unsealed
from tasks.evidence.decision import (
    MOST_EFFORT,
    NOTHING,
    Decision,
    GateQuestion,
    Spent,
    comparisons_left,
    decide,
    effort,
    used_up,
)
from tasks.gates.gates import bound_of, judge, not_asked, rows_named, subject
from tasks.gates.set_rows import Sets
from tasks.gates.set_scores import SetScores
from tasks.run.run import Run

# Smaller values are shown with two digits of their own.
_SMALL = 0.01


def judge_on_rows(
    run: Run, sets: Callable[[], Sets], candidate: Evaluation, champion: Evaluation | None
) -> list[GateResult]:
    """Each gate's result, in the order of the spec; those with `confidence` are asked only if all others are met.

    Errors as of `judge` and `judge_evidence`.

    Args:
        sets: the sets that the evaluations score, as `SetScores` takes them.
    """
    gates, scores = run.spec.promote.gates, SetScores(run, sets)
    asks = [gate.confidence is not None and (champion is not None or not gate.compares) for gate in gates]
    plain = judge([gate for gate, ask in zip(gates, asks, strict=True) if not ask], candidate, champion, scores)
    asking = [gate for gate, ask in zip(gates, asks, strict=True) if ask]
    if asking and all(one.met for one in plain):
        shown = judge_evidence(run, asking, candidate, champion, scores)
    else:
        shown = [not_asked(gate, "another gate is not met, and a comparison would spend test rows") for gate in asking]
    left = {True: iter(shown), False: iter(plain)}
    return [next(left[ask]) for ask in asks]


def judge_evidence(
    run: Run, gates: Sequence[GateSpec], candidate: Evaluation, champion: Evaluation | None, scores: SetScores
) -> list[GateResult]:
    """The results of the gates with `confidence`, in order. The comparison is entered in the ledger before it is made.

    Args:
        champion: None only for gates that do not compare with it.

    Raises:
        UsageError: a metric cannot be resampled; a slice or a unit is not there.
        InsufficientEvidence: the models were not scored on the same rows.
    """
    sealed = candidate.sealed
    candidate = unsealed(run.store, candidate)
    champion = None if champion is None else unsealed(run.store, champion)
    # First, so that nothing is spent if the scores cannot be compared.
    questions = [_question(gate, candidate, champion, scores) for gate in gates]
    _check_values(gates, questions)
    rows = [scores.test_rows(candidate, gate) for gate in gates]
    entries = LedgerEntries(run, gates, rows, candidate, champion)
    before = [entries.spent(one) for one in rows]
    over = [used_up(1 - one.confidence, spent) for one, spent in zip(questions, before, strict=True)]
    if any(over):
        return [
            not_asked(
                gate, used_up_sentence(spent, one.measured.rows) if its else "the test rows of another gate are used up"
            )
            for gate, one, spent, its in zip(gates, questions, before, over, strict=True)
        ]
    entries.enter()
    questions = [replace(one, spent=entries.spent(its)) for one, its in zip(questions, rows, strict=True)]
    decisions = decide(questions)
    # All gates on sealed sets have one verdict: many gates with different bounds would give the scores away.
    hidden = [gate.name in sealed for gate in gates]
    unseen = all(one.verdict == "better" for one, hides in zip(decisions, hidden, strict=True) if hides)
    met = [unseen if hides else one.verdict == "better" for one, hides in zip(decisions, hidden, strict=True)]
    entries.mark_better([its for its in rows if all(one for one, of in zip(met, rows, strict=True) if of.id == its.id)])
    results = []
    for gate, question, decision, hides in zip(gates, questions, decisions, hidden, strict=True):
        if hides:
            results.append(_sealed_result(gate, unseen, question.measured.rows, sum(hidden)))
            continue
        evidence = _evidence(gate, question, decision).model_copy(
            update={"units": scores.units(gate), "batches": scores.batches(gate, candidate)}
        )
        results.append(_result(gate, evidence, _values(gate, evidence, (candidate, champion), scores)))
    now = entries.spent_by_now()
    return [
        one.model_copy(update={"ledger": ledger_sentence(now[its.id], question.confidence, question.measured.rows)})
        for one, question, its in zip(results, questions, rows, strict=True)
    ]


def _check_values(gates: Sequence[GateSpec], questions: Sequence[GateQuestion]) -> None:
    for gate, one in zip(gates, questions, strict=True):
        if not math.isfinite(one.measured.gain):
            raise InsufficientEvidence(
                f"{subject(gate)} has no value for one of the models, so the gate cannot decide",
                remedy="Give the set or the slice rows of each class, or use another metric.",
            )


def _question(gate: GateSpec, candidate: Evaluation, champion: Evaluation | None, scores: SetScores) -> GateQuestion:
    assert gate.confidence is not None
    if not gate.compares:
        sign = _sign(gate)
        alone, reverse = scores.alone(gate, candidate, sign), scores.alone(gate, candidate, -1 if sign > 0 else 1)
        return GateQuestion(alone, reverse, sign * gate.threshold, gate.confidence, NOTHING)
    assert champion is not None
    paired, reverse = scores.paired(gate, candidate, champion), scores.paired(gate, champion, candidate)
    return GateQuestion(paired, reverse, bound_of(gate), gate.confidence, NOTHING)


def _sign(gate: GateSpec) -> Literal[1, -1]:
    """-1 if a gate requires a small value, else 1."""
    return -1 if gate.max is not None else 1


def _values(
    gate: GateSpec, evidence: Evidence, models: tuple[Evaluation, Evaluation | None], scores: SetScores
) -> tuple[float, float | None]:
    """The values of the candidate and, if it is compared with, the champion on the rows that the gate is about."""
    if not gate.compares:
        return evidence.estimate, None
    candidate, champion = models
    assert champion is not None
    if gate.slice is None:
        return candidate.metrics[gate.name].value, champion.metrics[gate.name].value
    mine, theirs = (scores.on_slice(one, gate.name, gate.slice).value for one in (candidate, champion))
    return mine, theirs


def _evidence(gate: GateSpec, question: GateQuestion, decision: Decision) -> Evidence:
    sign = _sign(gate)
    low, high = sorted((sign * decision.interval.low, sign * decision.interval.high))
    return Evidence(
        verdict=decision.verdict,
        estimate=sign * decision.gain,
        low=low,
        high=high,
        confidence=question.confidence,
        method=decision.interval.method,
        p_value=decision.p_value,
        level=decision.level,
        comparisons=question.spent.comparisons,
        promotions=question.spent.promotions,
        rows=question.measured.rows,
        rows_needed=decision.rows_needed,
    )


def _result(gate: GateSpec, evidence: Evidence, values: tuple[float, float | None]) -> GateResult:
    return GateResult(
        metric=gate.name,
        slice=gate.slice or "",
        met=evidence.verdict == "better",
        value=values[0],
        champion_value=values[1],
        bound=bound_of(gate),
        sentence=gate_sentence(gate, evidence, values),
        evidence=evidence,
    )


def _sealed_result(gate: GateSpec, met: bool, rows: int, gates: int) -> GateResult:
    """The verdict alone: neither by how much, nor whether it is worse or the evidence is insufficient.

    Args:
        gates: on sealed sets, which are met together or not at all.
    """
    return GateResult(
        metric=gate.name,
        slice=gate.slice or "",
        met=met,
        value=0.0,
        bound=bound_of(gate),
        sealed=True,
        sentence=sealed_sentence(gate, met, rows, gates),
    )


class LedgerEntries:
    """One comparison of two checkpoints, on one or several sets of rows.

    A retry of the same comparison finds its entries and spends nothing. Another question about the same checkpoints, or
    the same about other rows or scores, is another comparison.
    """

    def __init__(
        self,
        run: Run,
        gates: Sequence[GateSpec],
        rows: Sequence[TestRows],
        candidate: Evaluation,
        champion: Evaluation | None,
    ) -> None:
        """`rows` of each gate. CorruptError if the ledger lacks what the alias's newest receipt states."""
        self._run = run
        found = registry.read_alias(run.store, run.spec.model_name, run.spec.promote.alias)
        exposures.refuse_lost(run.store, registry.newest_receipt(found and found[0]))
        self._asked: dict[str, tuple[TestRows, str, str, str]] = {}
        self._made: dict[str, Exposure] = {}
        # The keys of the evaluations tell apart scores by other code, or under another perturbation.
        question = digest(
            {
                "gates": [_question_of_gate(run, gate) for gate in gates],
                "rows": [one.id for one in rows],
                "scores": [one.key for one in (candidate, champion) if one is not None],
                "candidates": run.spec.promote.candidates,
            }
        )
        theirs = "none" if champion is None else champion.checkpoint_id
        for one in rows:
            self._asked[one.id] = (one, candidate.checkpoint_id, theirs, question)
        for its_id, asked in self._asked.items():
            if (made := exposures.find_exposure(run.store, *asked)) is not None:
                self._made[its_id] = made

    def spent(self, rows: TestRows) -> Spent:
        """What the rows have decided before this comparison."""
        if rows.id in self._made:
            made = self._made[rows.id]
            return Spent(made.before, made.promoted)
        so_far = exposures.spent(self._run.store, rows)
        return Spent(so_far.before + self._run.spec.promote.candidates - 1, so_far.promoted)

    def enter(self) -> None:
        """Make the missing entries, before any verdict is computed."""
        for its_id, asked in self._asked.items():
            if its_id not in self._made:
                self._made[its_id] = exposures.expose(self._run.store, *asked, self._run.spec.promote.candidates)

    def mark_better(self, rows: Sequence[TestRows]) -> None:
        """Record the sets of rows that found the candidate better, before anyone sees the verdict."""
        for its_id in dict.fromkeys(one.id for one in rows):
            exposures.was_better(self._run.store, self._made[its_id])

    def spent_by_now(self) -> dict[str, Spent]:
        """What each set of rows has decided by now, by its id; counted again, as a plan counts it."""
        counted = {its_id: exposures.spent(self._run.store, asked[0]) for its_id, asked in self._asked.items()}
        return {its_id: Spent(one.before, one.promoted) for its_id, one in counted.items()}


def _question_of_gate(run: Run, gate: GateSpec) -> dict[str, object]:
    wanted = run.spec.evaluate
    return {
        "gate": gate.model_dump(mode="json"),
        "metric": wanted.metrics[gate.name.rpartition("/")[2]].model_dump(mode="json"),
        "slice": None if gate.slice is None else wanted.slices[gate.slice].model_dump(mode="json"),
        "unit": wanted.unit,
    }


def ledger_outlook(run: Run, sets: Callable[[], Sets]) -> str:
    """A sentence for each set or slice that a gate with `confidence` is about; "" if its rows are not known yet."""
    if not sets():
        return ""
    # The gate that is the first for which the rows are used up.
    strictest: dict[tuple[str, str | None], float] = {}
    for gate in run.spec.promote.gates:
        if gate.confidence is not None:
            its = gate.name.rpartition("/")[0], gate.slice
            strictest[its] = max(strictest.get(its, 0.0), gate.confidence)
    scores, parts = SetScores(run, sets), []
    for (name, part), confidence in strictest.items():
        found = scores.set_rows(name)
        rows, number = found.rows, found.num_rows
        if part is not None:
            rows, number = found.slice_rows[part], int(found.slices[part].sum())
        so_far = exposures.spent(run.store, rows)
        sentence = ledger_sentence(Spent(so_far.before, so_far.promoted), confidence, number)
        # Their loss would not be noticed.
        earlier = f"; its first {so_far.unchained} comparisons are not chained" if so_far.unchained else ""
        parts.append(f"{rows_named(name, part)}{sentence}{earlier}")
    return "; ".join(parts)


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
