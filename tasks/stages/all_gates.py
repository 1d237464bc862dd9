"""All gates of a run: those that compare values first; those with `confidence` only if these are met.

So a test set is not spent on a candidate that another gate refuses.
"""

from __future__ import annotations

from collections.abc import Sequence

from data_contracts.gate_results import GateResult
from data_contracts.handoffs import Dataset, Evaluation
from infra import exposures
from tasks.evidence.levels import Spent
from tasks.run.run import Run
from tasks.stages.evidence_gates import judge_evidence, skipped
from tasks.stages.evidence_sentences import ledger_sentence
from tasks.stages.gates import judge
from tasks.stages.set_scores import SetScores
from tasks.stages.shard import find_dataset

MORE_ROWS = (
    "Give the set more test rows, or fresh ones; promote.when_insufficient: promote accepts a candidate that is not "
    "shown to be worse."
)
_ANOTHER = "another gate is not met, and a comparison would spend test rows"


def judged(run: Run, dataset: Dataset | None, candidate: Evaluation, champion: Evaluation | None) -> list[GateResult]:
    """Each gate's result, in the order of the spec; errors as of `judge` and `judge_evidence`."""
    gates, scores = run.spec.promote.gates, SetScores(run, dataset)
    asks = [champion is not None and gate.confidence is not None for gate in gates]
    plain = judge([gate for gate, ask in zip(gates, asks, strict=True) if not ask], candidate, champion, scores)
    asking = [gate for gate, ask in zip(gates, asks, strict=True) if ask]
    if not asking or champion is None:
        return plain
    if all(one.met for one in plain):
        shown = judge_evidence(run, asking, candidate, champion, scores)
    else:
        shown = [skipped(gate, _ANOTHER) for gate in asking]
    left = {True: iter(shown), False: iter(plain)}
    return [next(left[ask]) for ask in asks]


def rows_left(run: Run) -> str:
    """What the test rows have decided and can still decide, for a plan; "" if no gate asks or none are made."""
    asking = {gate.name.rpartition("/")[0]: gate for gate in run.spec.promote.gates if gate.confidence is not None}
    dataset = find_dataset(run) if asking and not run.external else None
    if dataset is None:
        return ""
    scores, parts = SetScores(run, dataset), []
    for name, gate in asking.items():
        rows = scores.set_rows(name)
        so_far = exposures.spent(run.store, rows.rows)
        assert gate.confidence is not None
        told = ledger_sentence(Spent(so_far.before, so_far.promoted), gate.confidence, rows.num_rows)
        parts.append(f"{f'set {name}: ' if name else ''}{told}")
    return "; ".join(parts)


def is_undecided(gate: GateResult) -> bool:
    """Whether a gate is not met for want of evidence."""
    return not gate.met and (
        gate.skipped or gate.sealed or (gate.evidence is not None and gate.evidence.verdict == "insufficient")
    )


def refusing(run: Run, gates: Sequence[GateResult]) -> list[GateResult]:
    """The gates that keep the candidate from being promoted."""
    missed = [gate for gate in gates if not gate.met]
    # Whether a sealed set shows a candidate to be worse is told to nobody, so it is not promoted on a guess either.
    undecided = missed and all(is_undecided(gate) and not gate.sealed for gate in missed)
    if undecided and run.spec.promote.when_insufficient == "promote":
        return []
    decided = [gate for gate in missed if not gate.skipped]
    return decided or missed


def lacking(gates: Sequence[GateResult]) -> str:
    """What a promotion lacks, as the end of a sentence; "" if all gates are met."""
    missed = [gate for gate in gates if not gate.met]
    return f", promoted although the evidence is insufficient ({missed[0].sentence})" if missed else ""
