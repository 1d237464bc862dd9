"""All gates of a run: those that compare values first; those with `confidence` only if these are met.

So a test set is not spent on a candidate that another gate refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from data_contracts.handoffs import Evaluation
from data_contracts.pipeline_spec import GateSpec
from data_contracts.records import GateResult
from tasks.run.run import Run
from tasks.stages.gates.gates import judge, names_measure, not_asked

if TYPE_CHECKING:
    from tasks.stages.gates.set_scores import SetScores
    from tasks.stages.gates.test_rows import Sets

_ANOTHER = "another gate is not met, and a comparison would spend test rows"


def judged(run: Run, sets: Callable[[], Sets], candidate: Evaluation, champion: Evaluation | None) -> list[GateResult]:
    """Each gate's result, in the order of the spec; errors as of `judge` and `judge_evidence`.

    Args:
        sets: the sets that the evaluations score, as `SetScores` takes them.
    """
    gates = run.spec.promote.gates
    scores = _scores(run, sets) if any(map(_looks_at_rows, gates)) else None
    asks = [gate.confidence is not None and (champion is not None or not gate.compares) for gate in gates]
    plain = judge([gate for gate, ask in zip(gates, asks, strict=True) if not ask], candidate, champion, scores)
    asking = [gate for gate, ask in zip(gates, asks, strict=True) if ask]
    if scores is None or not asking:
        return plain
    if all(one.met for one in plain):
        from tasks.stages.gates.evidence_gates import judge_evidence  # SciPy and Numba take a second to import

        shown = judge_evidence(run, asking, candidate, champion, scores)
    else:
        shown = [not_asked(gate, _ANOTHER) for gate in asking]
    left = {True: iter(shown), False: iter(plain)}
    return [next(left[ask]) for ask in asks]


def rows_left(run: Run, sets: Callable[[], Sets]) -> str:
    """What the test rows have decided and can still decide, for a plan; "" if no gate has `confidence`."""
    if all(gate.confidence is None for gate in run.spec.promote.gates):
        return ""
    from tasks.stages.gates.ledger_outlook import ledger_outlook

    return ledger_outlook(run, sets)


def _looks_at_rows(gate: GateSpec) -> bool:
    return bool(gate.confidence or gate.slice or gate.max_gap is not None or names_measure(gate))


def _scores(run: Run, sets: Callable[[], Sets]) -> SetScores:
    from tasks.stages.gates.set_scores import SetScores

    return SetScores(run, sets)


def is_undecided(gate: GateResult) -> bool:
    """Whether a gate is not met for want of evidence."""
    return not gate.met and (
        gate.skipped or gate.sealed or (gate.evidence is not None and gate.evidence.verdict == "insufficient")
    )


def refusing(run: Run, gates: Sequence[GateResult]) -> list[GateResult]:
    """The gates that keep the candidate from being promoted."""
    missed = [gate for gate in gates if not gate.met]
    # A sealed set does not reveal whether it shows a candidate to be worse, so the candidate is not promoted without
    # that evidence. If a gate was not evaluated because its rows are used up, nothing is known of the candidate, so it
    # is not promoted either.
    undecided = missed and all(is_undecided(gate) and not gate.sealed and not gate.skipped for gate in missed)
    if undecided and run.spec.promote.when_insufficient == "promote":
        return []
    decided = [gate for gate in missed if not gate.skipped]
    return decided or missed


def more_rows(run: Run, missed: Sequence[GateResult]) -> str:
    """What to do if the rows do not suffice for these gates."""
    advice = "Give the set more test rows, or fresh ones, or train a better candidate"
    if run.spec.promote.when_insufficient == "promote" or any(gate.sealed or gate.skipped for gate in missed):
        return f"{advice}."
    return f"{advice}; promote.when_insufficient: promote accepts a candidate that is not shown to be worse."


def lacking(gates: Sequence[GateResult]) -> str:
    """What a promotion still lacks, as the end of a sentence; "" if all gates are met."""
    missed = [gate for gate in gates if not gate.met]
    return f", promoted although the evidence is insufficient ({missed[0].sentence})" if missed else ""
