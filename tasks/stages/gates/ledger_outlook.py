"""What a run's test rows have decided and can still decide, for a plan."""

from __future__ import annotations

from collections.abc import Callable

from infra.models import exposures
from tasks.evidence.decision import Spent
from tasks.run.run import Run
from tasks.stages.gates.evidence_sentences import ledger_sentence
from tasks.stages.gates.gates import rows_named
from tasks.stages.gates.set_scores import SetScores
from tasks.stages.gates.test_rows import Sets


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
