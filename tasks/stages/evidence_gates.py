"""Gates with `confidence`: the scores of both models on the same rows must show the gain that is asked for.

The exposure ledger counts how often these rows have decided before; each comparison asks for more evidence than the one
before it, so that the promise holds however often the line runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from data_contracts.gate_results import Evidence, GateResult
from data_contracts.handoffs import Evaluation
from data_contracts.pipeline_spec import GateSpec
from infra.evaluations import unsealed
from tasks.evidence.decision import Decision, Question, decide
from tasks.evidence.levels import NOTHING, used_up
from tasks.run.run import Run
from tasks.stages.evidence_sentences import gate_sentence, sealed_sentence, used_up_sentence
from tasks.stages.gates import bound_of, not_asked
from tasks.stages.ledger_entries import LedgerEntries
from tasks.stages.set_scores import SetScores


def judge_evidence(
    run: Run, gates: Sequence[GateSpec], candidate: Evaluation, champion: Evaluation, scores: SetScores
) -> list[GateResult]:
    """The results of the gates with `confidence`, in order. The comparison is entered in the ledger before it is made.

    Raises:
        UsageError: a metric cannot be resampled; a slice or a unit is not there.
        InsufficientEvidence: the models were not scored on the same rows.
    """
    sealed = candidate.sealed
    candidate, champion = (unsealed(run.store, one) for one in (candidate, champion))
    # First, so that nothing is spent if the scores cannot be compared.
    questions = [_question(gate, candidate, champion, scores) for gate in gates]
    rows = [scores.test_rows(candidate, gate.name) for gate in gates]
    entries = LedgerEntries(run, gates, rows, candidate.checkpoint_id, champion.checkpoint_id)
    before = [entries.spent(one) for one in rows]
    if any(used_up(1 - one.confidence, spent) for one, spent in zip(questions, before, strict=True)):
        return [
            not_asked(gate, used_up_sentence(spent, one.paired.rows))
            for gate, one, spent in zip(gates, questions, before, strict=True)
        ]
    entries.enter()
    questions = [replace(one, spent=entries.spent(its)) for one, its in zip(questions, rows, strict=True)]
    decisions = decide(questions)
    if all(one.verdict == "better" for one in decisions):
        entries.mark_better()
    results = []
    for gate, question, decision in zip(gates, questions, decisions, strict=True):
        if gate.name in sealed:
            results.append(_sealed_result(gate, decision, question.paired.rows))
            continue
        evidence = _evidence(question, decision, scores.units(gate))
        results.append(_result(gate, evidence, _values(gate, candidate, champion, scores)))
    return results


def _question(gate: GateSpec, candidate: Evaluation, champion: Evaluation, scores: SetScores) -> Question:
    assert gate.confidence is not None
    paired, reverse = scores.paired(gate, candidate, champion), scores.paired(gate, champion, candidate)
    return Question(paired, reverse, bound_of(gate), gate.confidence, NOTHING)


def _values(gate: GateSpec, candidate: Evaluation, champion: Evaluation, scores: SetScores) -> tuple[float, float]:
    """The values of both models on the rows that the gate is about."""
    if gate.slice is None:
        return candidate.metrics[gate.name].value, champion.metrics[gate.name].value
    mine, theirs = (scores.on_slice(one, gate.name, gate.slice).value for one in (candidate, champion))
    return mine, theirs


def _evidence(question: Question, decision: Decision, units: int | None) -> Evidence:
    return Evidence(
        verdict=decision.verdict,
        gain=decision.gain,
        low=decision.interval.low,
        high=decision.interval.high,
        confidence=question.confidence,
        method=decision.interval.method,
        p_value=decision.p_value,
        level=decision.level,
        comparisons=question.spent.comparisons,
        promotions=question.spent.promotions,
        rows=question.paired.rows,
        units=units,
        rows_needed=decision.rows_needed,
    )


def _result(gate: GateSpec, evidence: Evidence, values: tuple[float, float]) -> GateResult:
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


def _sealed_result(gate: GateSpec, decision: Decision, rows: int) -> GateResult:
    """The verdict alone: neither by how much, nor whether it is worse or the evidence is insufficient."""
    met = decision.verdict == "better"
    return GateResult(
        metric=gate.name,
        slice=gate.slice or "",
        met=met,
        value=0.0,
        bound=bound_of(gate),
        sealed=True,
        sentence=sealed_sentence(gate, met, rows),
    )
