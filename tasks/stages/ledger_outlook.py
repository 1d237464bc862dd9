"""What a run's test rows have decided and can still decide, for a plan."""

from __future__ import annotations

from infra import exposures
from tasks.evidence.levels import Spent
from tasks.run.run import Run
from tasks.stages.evidence_sentences import ledger_sentence
from tasks.stages.set_scores import SetScores
from tasks.stages.shard import find_dataset


def ledger_outlook(run: Run) -> str:
    """A sentence for each set that a gate with `confidence` is about; "" if its rows are not known yet."""
    asking = {gate.name.rpartition("/")[0]: gate for gate in run.spec.promote.gates if gate.confidence is not None}
    dataset = None if run.external else find_dataset(run)
    if dataset is None:
        return ""
    scores, parts = SetScores(run, dataset), []
    for name, gate in asking.items():
        rows = scores.set_rows(name)
        so_far = exposures.spent(run.store, rows.rows)
        assert gate.confidence is not None
        sentence = ledger_sentence(Spent(so_far.before, so_far.promoted), gate.confidence, rows.num_rows)
        parts.append(f"{f'set {name}: ' if name else ''}{sentence}")
    return "; ".join(parts)
