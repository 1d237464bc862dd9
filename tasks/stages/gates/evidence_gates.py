"""Gates with `confidence`: the rows must show the required gain over the champion, or the required value.

The exposure ledger counts how often these rows have decided before; each comparison asks for more evidence than the one
before it, so that the promise holds however often the pipeline runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from data_contracts.errors import InsufficientEvidence
from data_contracts.handoffs import Evaluation
from data_contracts.pipeline_spec import GateSpec
from data_contracts.records import Evidence, GateResult
from infra.records.evaluations import unsealed
from tasks.evidence.decision import NOTHING, Decision, Question, Spent, decide, used_up
from tasks.run.run import Run
from tasks.stages.gates.evidence_sentences import gate_sentence, ledger_sentence, sealed_sentence, used_up_sentence
from tasks.stages.gates.gates import bound_of, not_asked, subject
from tasks.stages.gates.ledger_entries import LedgerEntries
from tasks.stages.gates.set_scores import SetScores

_OTHER_ROWS = "the test rows of another gate are used up"


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
            not_asked(gate, used_up_sentence(spent, one.measured.rows) if its else _OTHER_ROWS)
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
        one.model_copy(update={"ledger": _ledger(question, now[its.id])})
        for one, question, its in zip(results, questions, rows, strict=True)
    ]


def _check_values(gates: Sequence[GateSpec], questions: Sequence[Question]) -> None:
    for gate, one in zip(gates, questions, strict=True):
        if not math.isfinite(one.measured.gain):
            raise InsufficientEvidence(
                f"{subject(gate)} has no value for one of the models, so the gate cannot decide",
                remedy="Give the set or the slice rows of each class, or use another metric.",
            )


def _question(gate: GateSpec, candidate: Evaluation, champion: Evaluation | None, scores: SetScores) -> Question:
    assert gate.confidence is not None
    if not gate.compares:
        sign = _sign(gate)
        alone, reverse = scores.alone(gate, candidate, sign), scores.alone(gate, candidate, -1 if sign > 0 else 1)
        return Question(alone, reverse, sign * gate.threshold, gate.confidence, NOTHING)
    assert champion is not None
    paired, reverse = scores.paired(gate, candidate, champion), scores.paired(gate, champion, candidate)
    return Question(paired, reverse, bound_of(gate), gate.confidence, NOTHING)


def _ledger(question: Question, spent: Spent) -> str:
    return ledger_sentence(spent, question.confidence, question.measured.rows)


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


def _evidence(gate: GateSpec, question: Question, decision: Decision) -> Evidence:
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
