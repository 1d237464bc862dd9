"""Which rows are fresh for a canary: no tally has them, and neither model was trained or chosen on them.

Rows are compared one by one, by the digests of what is in them; a row that occurs twice counts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.alias_moves import ALIAS, Night
from data_contracts.errors import CorruptError, InsufficientEvidence
from data_contracts.handoffs import Dataset, Evaluation, ModelVersion, Ref
from data_contracts.profile.sketches import mixed, value_hashes
from infra.models import canaries
from infra.models.canaries import Canary, Digests, ascending
from infra.records.handoffs import read_handoff
from tasks.run.run import Run
from tasks.stages.gates.test_rows import hashed_columns, numbered, row_digests
from tasks.stages.lineage import trained_with

# Tells the digest of a unit apart from that of a row.
_UNIT = np.uint64(0xA24BAED4963EE407)


@dataclass(frozen=True)
class FreshRows:
    """The fresh ones among the rows of a set.

    Attributes:
        mask: (num_rows,) whether each row is fresh.
        digests: of the fresh rows, and of their units: what the next tally leaves out.
        units: (fresh,) the number of each fresh row's unit; None without `evaluate.unit`.
    """

    mask: NDArray[np.bool_]
    digests: Digests
    units: NDArray[np.int64] | None


class SetDigests:
    """The rows of a set, read once; asked again if another run has tallied some meanwhile."""

    def __init__(self, run: Run, dataset: Dataset, split: str) -> None:
        self._run = run
        self._rows, units = row_digests(run, dataset, split, run.spec.evaluate.unit)
        self._units = None if units is None else mixed(units + _UNIT)
        nothing = value_hashes(pa.nulls(1))[0]
        self._missing = None if units is None else units == nothing
        # The first of equal rows counts.
        self._open = np.zeros(len(self._rows), bool)
        self._open[np.unique(self._rows, return_index=True)[1]] = True

    def leave_out(self, canary: Canary, models: Iterable[ModelVersion]) -> None:
        """Leave out what one of the models was trained or chosen on."""
        for ref in {ref.id: ref for model in models for ref in seen_by(self._run, model)}.values():
            self._leave_out(self._seen(canary, ref))

    def fresh(self, canary: Canary, nights: Iterable[Night]) -> FreshRows:
        """The fresh rows after these tallies."""
        known = [canaries.read_rows(self._run.store, canary, night.rows_id) for night in nights]
        if known:
            # All tallies at once: a pass over the rows takes as long for a hundred nights as for one.
            self._leave_out(ascending(np.concatenate(known)))
        mask, units = self._open.copy(), None
        digests = self._rows[mask]
        if self._units is not None and self._missing is not None:
            missing = self._missing[mask]
            units = numbered(self._units[mask], missing)
            digests = np.concatenate([digests, self._units[mask][~missing]])
        return FreshRows(mask, digests, units)

    def _leave_out(self, known: Digests) -> None:
        if not len(known):
            return
        self._open &= ~_in(self._rows, known)
        if self._units is not None and self._missing is not None:
            self._open &= self._missing | ~_in(self._units, known)

    def _seen(self, canary: Canary, ref: Ref) -> Digests:
        """The digests of all rows of a dataset, computed once for each canary."""
        store = self._run.store
        found = canaries.seen_digests(store, canary, ref.id)
        if found is None:
            dataset = read_handoff(store, ref, Dataset)
            splits = [row_digests(self._run, dataset, name)[0] for name in dataset.splits if dataset.rows(name)]
            found = ascending(np.concatenate([np.empty(0, np.uint64), *splits]))
            canaries.put_seen(store, canary, ref.id, found)
        return found


def seen_by(run: Run, model: ModelVersion) -> list[Ref]:
    """The datasets that a version was trained on, and those that it was scored on before it was chosen."""
    store = run.store
    found = [trained_with(run, model.checkpoint).dataset]
    evaluation = read_handoff(store, model.evaluation, Evaluation)
    for uri in (model.checkpoint.ref, evaluation.ref):
        found += [one for one in store.manifest(uri).parents if one.uri.startswith("datasets/")]
    if missing := set(evaluation.dataset_ids.values()) - {one.id for one in found if one is not None}:
        raise CorruptError(f"{evaluation.ref.uri} does not say where the dataset {min(missing)[:12]} lies.")
    return [one for one in found if one is not None]


def refuse_other_columns(run: Run, dataset: Dataset, canary: Canary) -> None:
    """InsufficientEvidence if the rows have other columns than the canary's: then none is known again, and all are new.

    Args:
        dataset: of this run, with the rows that the canary is to be scored on.
    """
    ref = trained_with(run, canary.version.checkpoint).dataset
    if ref is None:
        return
    before = hashed_columns(run, list(read_handoff(run.store, ref, Dataset).columns))
    changed = sorted(set(before) ^ set(hashed_columns(run, list(dataset.columns))))
    if changed:
        raise InsufficientEvidence(
            f"{canary.model}@{ALIAS}, version {canary.version.version}, has no fresh rows: the dataset has other "
            f"columns than when it was trained ({', '.join(changed[:5])}), so no row is known again.",
            remedy=f"Take the canary back: `trainwright canary {canary.model} --withdraw --reason WHY`.",
        )


def _in(values: Digests, known: Digests) -> NDArray[np.bool_]:
    """Whether each value is among the known ones, which are ascending."""
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return known[places] == values
