"""The entry of a run's comparison in the exposure ledger of each set of rows that its gates look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_contracts.canonical import digest
from data_contracts.handoffs import Evaluation
from data_contracts.pipeline_spec import GateSpec
from infra.models import exposures, registry
from infra.models.exposures import Exposure
from infra.records.evaluations import TestRows
from tasks.evidence.decision import Spent
from tasks.run.run import Run


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
        models = [one for one in (candidate, champion) if one is not None]
        # The keys of the evaluations tell apart scores by other code, or under another perturbation.
        question = digest(
            {
                "gates": [_question(run, gate) for gate in gates],
                "rows": [one.id for one in rows],
                "scores": [one.key for one in models],
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


def _question(run: Run, gate: GateSpec) -> dict[str, Any]:
    wanted = run.spec.evaluate
    return {
        "gate": gate.model_dump(mode="json"),
        "metric": wanted.metrics[gate.name.rpartition("/")[2]].model_dump(mode="json"),
        "slice": None if gate.slice is None else wanted.slices[gate.slice].model_dump(mode="json"),
        "unit": wanted.unit,
    }
