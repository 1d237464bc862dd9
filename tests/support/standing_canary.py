"""A place in which canaries stand: real promotions in a store in memory; a night's rows and the scores are given."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from data_contracts.alias_moves import ALIAS
from data_contracts.handoffs import Checkpoint, Evaluation, MetricValue, Receipt, Ref
from data_contracts.pipeline_spec.promote import CanarySpec, PromoteSpec
from data_contracts.profile.sketches import mixed
from infra import approvals
from infra.models import canaries, registry
from infra.models.canaries import Canary
from infra.records.evaluations import Outcomes
from infra.records.receipts import has_ended
from infra.store import Store, layout
from tasks.run.run import Run
from tasks.stages import approval, canary, canary_observations, promote
from tests.support.raced import Memory, Raced
from tests.support.runs import make_run
from tests.support.tiny import SPEC

BEGAN = "2026-11-22T10:00:00+00:00"
# The share of rows on which each model is right.
SKILL = {1: 0.5, 2: 0.8, 3: 0.2, 4: 0.5, 5: 0.85}
ANN = {"run_id": "canary-1", "actor": "ann", "finished": BEGAN, "parents": []}
CLOCKS = (approval, canary, canary, canary, canary_observations, approval, canaries)
METRIC = {"class_path": "torchmetrics.classification.MulticlassAccuracy", "mode": "max"}


def is_right(n: int, rows: np.ndarray) -> np.ndarray:
    """On which rows model `n` is right; a better one is right wherever a worse one is."""
    return (mixed(rows.astype(np.uint64)) % np.uint64(1000) < np.uint64(round(1000 * SKILL[n]))).astype(np.float64)


def evaluation(n: int) -> Evaluation:
    """Model `n`'s scores, of which the gates see the value alone."""
    ref = Ref(uri=f"evaluations/e{n}-0", id=f"{n:064x}", seal=f"{n:064x}")
    metrics = {"a": MetricValue(value=SKILL[n], mode="max", rows=100, unit="row")}
    return Evaluation(ref=ref, key="k", checkpoint_id="", dataset_ids={}, metrics=metrics)


class CanaryPlace:
    """A store with five verified checkpoints; `rows` are those of the next run's test set."""

    def __init__(self, patch: pytest.MonkeyPatch, store: Store | None = None) -> None:
        """In memory, or in a given store."""
        self.raced = Raced(Memory() if store is None else store._backend, layout.alias("tiny", "champion"))
        self.store = Store(self.raced, {}) if store is None else store
        self.time = datetime.fromisoformat(BEGAN)
        self.rows = np.empty(0, np.int64)
        self.units: np.ndarray | None = None
        self.seen: dict[int, np.ndarray] = {}  # by model: the rows that it was trained on
        self.terms: dict[str, Any] = {"within": "14d", "metric": "a", "min_rows": 100}
        self.more: dict[str, Any] = {}
        self.checkpoints = {n: self._checkpoint(n) for n in SKILL}
        self._patch(patch)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        for module in CLOCKS:
            patch.setattr(module, "now", self.now)
        patch.setattr(approvals, "time_of", lambda _: self.now())
        patch.setattr(Run, "provenance", lambda run, *parents: self._provenance(run, *parents))
        patch.setattr(Run, "with_recipe", lambda run, provenance: provenance)
        patch.setattr(promote, "comparable", self._comparable)
        patch.setattr(canary_observations, "comparable", self._comparable)
        patch.setattr(
            canary_observations, "score", lambda run, checkpoint, dataset: (evaluation(checkpoint.step), True)
        )
        patch.setattr(canary_observations, "sets_to_score", lambda run, dataset: {"": (None, "test")})
        patch.setattr(canary_observations, "outcomes_of", self._outcomes)
        patch.setattr(canary_observations, "row_digests", lambda *_: (mixed(self.rows.astype(np.uint64)), self.units))
        patch.setattr(canary_observations, "seen_by", lambda run, model: [self._dataset(model.checkpoint.step)])
        patch.setattr(canary_observations.SetDigests, "_seen", lambda _, canary, ref: self._seen(ref))
        patch.setattr(canary, "read_handoff", lambda store, ref, kind: evaluation(int(ref.id, 16)))

    def now(self) -> str:
        return self.time.isoformat(timespec="seconds")

    def passes(self, **length: int) -> None:
        """Let time pass."""
        self.time += timedelta(**length)

    def _checkpoint(self, n: int) -> Checkpoint:
        writer = self.store.writer(layout.checkpoint("trainings/k-0", n, 0))
        ref = writer.seal("checkpoint", {"step": n}, {}, [writer.put("state.json", b"{}")])
        about = {"training": "trainings/k-0", "epoch": 0, "generation": 0, "world_size": 1, "state": "verified"}
        return Checkpoint(ref=ref, key="k", step=n, **about)

    def _comparable(
        self, run: Run, mine: Checkpoint, first: Evaluation, theirs: Checkpoint, dataset: Any, names: Any
    ) -> tuple[Evaluation, Evaluation]:
        return first, evaluation(theirs.step)

    def _outcomes(self, store: Any, of: Evaluation, metric: str) -> Outcomes:
        values = is_right(int(of.ref.id, 16), self.rows)
        return Outcomes(values, np.ones(len(values), np.int64), "row")

    def _dataset(self, n: int) -> Ref:
        return Ref(uri=f"datasets/d{n}-0", id=f"{n:064x}", seal=f"{n:064x}")

    def _seen(self, ref: Ref) -> np.ndarray:
        return np.unique(mixed(self.seen.get(int(ref.id, 16), np.empty(0)).astype(np.uint64)))

    def _provenance(self, run: Run, *parents: Ref | None) -> dict[str, Any]:
        named = [one.to_json() for one in parents if one is not None]
        return {"run_id": run.run_id, "actor": "bob", "finished": self.now(), "parents": named}

    def run(
        self, run_id: str, *, canary: bool = True, alias: str = "champion", gates: Any = (), target: str = "label"
    ) -> Run:
        """A run that promotes to an alias, or that lets its candidate stand as canary first."""
        terms = CanarySpec(**self.terms) if canary else None
        section = PromoteSpec(gates=list(gates), canary=terms, alias=alias).model_copy(update=self.more)
        evaluate = {"metrics": {"a": {**METRIC, "target": target}}, "unit": None if self.units is None else "customer"}
        data = {"source": "rows-*.csv"}  # a glob, into which new rows come
        spec = {**SPEC, "data": data, "evaluate": evaluate, "promote": section}
        return make_run(self.store, run_id=run_id, spec=spec, started=self.now(), actor="bob", commit="c")

    def promoted(self, n: int, run_id: str = "", *, force: str | None = None, **how: Any) -> Receipt:
        """What a run with model `n` as its candidate answers."""
        run = self.run(run_id or f"run-{n}", **how)
        result = promote.promote.find_or_make(run, self.checkpoints[n], None, evaluation(n), force=force)
        receipt: Receipt = result.handoff
        return receipt

    def stands(self, n: int = 2) -> Canary:
        """Model 1 is the champion, and model `n` its canary."""
        self.promoted(1, canary=False)
        assert self.promoted(n).decision == "canary"
        return self.canary()

    def canary(self) -> Canary:
        found = canaries.standing_canary(self.store, "tiny")
        assert found is not None
        return found

    def night(self, first: int, count: int, n: int = 4, run_id: str = "", **how: Any) -> Receipt:
        """A run with rows `first` to `first + count` and candidate `n`."""
        self.rows = np.arange(first, first + count)
        return self.promoted(n, run_id or f"night-{first}-{count}", **how)

    def named(self, alias: str = "champion") -> int | None:
        """The version that an alias names; None if it names none or has ended."""
        found = registry.read_alias(self.store, "tiny", alias)
        return None if found is None or has_ended(found[0]) else found[1]

    def history(self, alias: str = ALIAS) -> list[Receipt]:
        return registry.history(self.store, "tiny", alias)

    def held(self) -> list[int]:
        found = registry.read_alias(self.store, "tiny", ALIAS)
        return [] if found is None else [one.version for one in registry.holds(self.store, found[0])]

    def question(self, run_id: str) -> Any:
        return approvals.latest_question(self.store, run_id)
