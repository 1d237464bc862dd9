"""What promote writes and answers, field by field, in a store in memory; the scores are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import GateNotMet, InsufficientEvidence, OnHold, UsageError
from data_contracts.handoffs import Checkpoint, Evaluation, MetricValue, Ref
from data_contracts.pipeline_spec import GateSpec
from data_contracts.pipeline_spec.promote import PromoteSpec
from infra.models import registry
from infra.store import Store
from tasks.run.run import Run
from tasks.stages import promote as stage
from tasks.stages.promote import promote
from tasks.stages.rollback import rollback
from tests.support.raced import Memory
from tests.support.runs import make_run
from tests.support.stored_checkpoints import stored_checkpoint

NAME = "tiny@champion"
STARTED = "2026-11-22T10:00:00+00:00"
ANN = {"run_id": "rollback-1", "actor": "ann", "finished": "2026-11-22T19:00:00+00:00"}
SCORES = {1: 0.5, 2: 0.7, 3: 0.9}
HELD = "ann rolled version 2 back at 2026-11-22 19:00 UTC"


class Place:
    """A store with three verified checkpoints, and runs that promote them; `compared` is what was scored again."""

    def __init__(self, patch: pytest.MonkeyPatch, backend: Any = None) -> None:
        self.store = Store(backend or Memory(), {})
        self.compared: list[tuple[int, int, list[str]]] = []
        self.asked: list[tuple[str, ...]] = []
        self.checkpoints = {n: stored_checkpoint(self.store, n, state="verified") for n in SCORES}
        patch.setattr(stage, "comparable", self._comparable)
        patch.setattr(Run, "provenance", lambda run, *parents: self._provenance(run, *parents))
        patch.setattr(Run, "with_recipe", lambda run, provenance: provenance)

    def _comparable(
        self, run: Run, mine: Checkpoint, told: Evaluation, theirs: Checkpoint, dataset: Any, names: Any
    ) -> tuple[Evaluation, Evaluation]:
        assert dataset is None
        self.compared.append((mine.step, theirs.step, names))
        return told, scored(theirs.step)

    def _provenance(self, run: Run, *parents: Ref | None) -> dict[str, Any]:
        self.asked.append(tuple(parent.uri for parent in parents if parent is not None))
        return {"run_id": run.run_id, "actor": "bob", "finished": STARTED, "parents": []}

    def run(self, run_id: str, *gates: GateSpec, recorded: bool = False, trigger: str = "cli", **promote: Any) -> Run:
        """A run that compares two metrics; `asked` gets what each of its provenances names."""
        metrics = {name: {"logged": name, "mode": "max"} for name in ("a", "b")}
        spec = {"evaluate": {"metrics": metrics}, "promote": PromoteSpec(gates=list(gates), **promote)}
        return make_run(
            self.store,
            run_id=run_id,
            recorded=recorded,
            spec=spec,
            started=STARTED,
            actor="bob",
            trigger=trigger,
            root=".",
        )

    def promoted(
        self, n: int, *gates: GateSpec, force: str | None = None, run_id: str = "", dataset: Any = None
    ) -> Any:
        run = self.run(run_id or f"run-{n}", *gates)
        return promote.find_or_make(run, self.checkpoints[n], dataset, scored(n), force=force)

    def now(self) -> tuple[int, list[int]]:
        found = registry.read_alias(self.store, "tiny", "champion")
        return found[1], [hold.version for hold in registry.holds(self.store, found[0])]

    def version(self, n: int) -> Ref:
        return registry.read_version(self.store, "tiny", n).ref


def scored(n: int, rows: int = 100) -> Evaluation:
    ref = Ref(uri=f"evaluations/e{n}-0", id=f"{n:064x}", seal=f"{n:064x}")
    metrics = {name: MetricValue(value=SCORES[n], mode="max", rows=rows, unit="row") for name in ("a", "b")}
    return Evaluation(ref=ref, key="k", checkpoint_id="", dataset_ids={}, metrics=metrics)


def gate(metric: str = "a", **bounds: float) -> GateSpec:
    return GateSpec(metric=metric, **bounds)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def test_the_first_version(place: Place) -> None:
    done = place.promoted(1, gate(min=0.5), gate("b", min_gain=0.0))
    receipt, version = done.handoff, place.version(1)
    assert (done.status, done.sentence, done.ref) == ("ran", f"{NAME} is version 1", version)
    assert (receipt.decision, receipt.model, receipt.alias) == ("promoted", "tiny", "champion")
    assert (receipt.version, receipt.previous, receipt.champion) == (1, None, None)
    assert [(one.metric, one.met) for one in receipt.gates] == [("a", True), ("b", True)]
    assert (receipt.candidate, receipt.evaluation) == (version, scored(1).ref)
    assert receipt.sentence == done.sentence
    assert place.compared == [], "there is nobody to compare with"
    sealed = registry.read_version(place.store, "tiny", 1)
    assert (sealed.checkpoint.ref, sealed.evaluation) == (place.checkpoints[1].ref, scored(1).ref)
    assert place.asked == [
        (place.checkpoints[1].ref.uri, scored(1).ref.uri),
        (version.uri, scored(1).ref.uri),
    ]
    assert [one.to_json() for one in registry.history(place.store, "tiny", "champion")] == [receipt.to_json()]


def test_the_receipt_counts_the_rows_that_the_contract_set_aside(place: Place) -> None:
    done = place.promoted(1, dataset=SimpleNamespace(dropped_rows={"gap": 3, "quarantined": 7}))
    assert done.handoff.quarantined_rows == 7
    assert registry.history(place.store, "tiny", "champion")[-1].quarantined_rows == 7


def test_a_better_one_replaces_the_champion(place: Place) -> None:
    place.promoted(1)
    place.asked.clear()
    done = place.promoted(2, gate(min=0.5), gate("b", min_gain=0.1))
    receipt = done.handoff
    assert done.sentence == f"{NAME} is version 2, was 1"
    assert (receipt.version, receipt.previous, receipt.champion) == (2, 1, place.version(1))
    assert [one.champion_value for one in receipt.gates] == [None, 0.5]
    assert place.compared == [(2, 1, ["b"])], "only what a gate compares is scored on the same rows"
    assert place.asked[-1] == (place.version(2).uri, scored(2).ref.uri, place.version(1).uri, scored(1).ref.uri)
    assert place.now() == (2, [])


def test_the_champion_again_changes_nothing(place: Place) -> None:
    first = place.promoted(1).handoff
    found = registry.read_alias(place.store, "tiny", "champion")
    for done in (place.promoted(1, run_id="other"), promote.stored(place.run("x"), *given(place, 1))):
        receipt, version = done.handoff, place.version(1)
        sentence = f"{NAME} already is this checkpoint (version 1)"
        assert (done.status, done.sentence, done.in_plan) == ("reused", sentence, sentence)
        assert (done.ref, done.reused_from) == (version, version.uri)
        assert (receipt.decision, receipt.model, receipt.alias) == ("unchanged", "tiny", "champion")
        assert (receipt.version, receipt.previous, receipt.sentence) == (1, 1, sentence)
        assert (receipt.candidate, receipt.evaluation, receipt.champion) == (version, scored(1).ref, version)
    assert registry.read_alias(place.store, "tiny", "champion") == found
    assert registry.history(place.store, "tiny", "champion") == [first]


def given(place: Place, n: int) -> tuple[Checkpoint, None, Evaluation]:
    return place.checkpoints[n], None, scored(n)


def test_a_resumed_run_finds_its_own_promotion(place: Place) -> None:
    assert promote.stored(place.run("run-1"), *given(place, 1)) is None
    first = place.promoted(1)
    again = promote.stored(place.run("run-1"), *given(place, 1))
    assert (again.status, again.handoff, again.ref) == ("ran", first.handoff, place.version(1))
    assert again.sentence == first.sentence
    place.promoted(2)
    again = place.promoted(1)
    assert again.handoff.decision == "promoted"
    assert again.sentence == f"{NAME} is version 1; it was moved again since and is version 2 now"
    assert (again.sentence, again.ref) == (again.handoff.sentence, place.version(1))
    assert promote.stored(place.run("run-3"), *given(place, 3)) is None


def test_gates_that_are_not_met_are_all_named(place: Place) -> None:
    with pytest.raises(GateNotMet) as raised:
        place.promoted(1, gate(min=0.6), gate(min=0.4), gate("b", max=0.4))
    low, _, high = raised.value.details["gates"]
    assert [one["met"] for one in raised.value.details["gates"]] == [False, True, False]
    assert raised.value.message == (
        f"Not promoted, 2 of 3 gates not met: {low['sentence']}; {high['sentence']}; no version was made."
    )
    assert registry.read_alias(place.store, "tiny", "champion") is None
    assert registry.next_version(place.store, "tiny") == 1
    place.promoted(2)
    with pytest.raises(GateNotMet, match=rf"1 of 1 gates not met: .*; {NAME} stays at version 1\."):
        place.promoted(1, gate(min_gain=0.0))
    assert place.now() == (1, [])


def test_too_little_evidence_keeps_its_details(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run = place.run("r", gate(min=0.1))
    with pytest.raises(InsufficientEvidence) as raised:
        promote.find_or_make(run, place.checkpoints[1], None, scored(1, rows=0))
    undecided = "a was scored on no rows, so the gate cannot decide"
    assert raised.value.message == f"Not promoted: {undecided}; no version was made."
    assert raised.value.__cause__ is None
    place.promoted(2)
    error = InsufficientEvidence("Rows differ.", remedy="Mend the slice.", details={"rows": 3})
    monkeypatch.setattr(stage, "judged", Mock(side_effect=error))
    with pytest.raises(InsufficientEvidence) as raised:
        place.promoted(1)
    assert raised.value.message == f"Not promoted: Rows differ; {NAME} stays at version 1."
    assert (raised.value.remedy, raised.value.details) == ("Mend the slice.", {"rows": 3})


def test_a_checkpoint_on_hold(place: Place) -> None:
    for n in (1, 2):
        place.promoted(n)
    rollback(place.store, "tiny", "champion", None, ANN, "")
    outlook = promote.ahead
    assert outlook(place.run("x"), *given(place, 2)) == ("run", f"it will not be promoted: on hold, because {HELD}")
    assert outlook(place.run("x"), *given(place, 3)) == ("run", "the gates are computed each time")
    with pytest.raises(OnHold) as raised:
        place.promoted(2, run_id="later")
    assert raised.value.message == (
        f"Not promoted: this checkpoint is on hold, because {HELD}; {NAME} stays at version 1."
    )
    assert f"`trainwright release {NAME} 2 --reason WHY`" in str(raised.value)
    assert raised.value.details["held"]["checkpoint_id"] == place.checkpoints[2].ref.id
    place.promoted(3)
    assert place.now() == (3, [2]), "another checkpoint does not lift the hold"
    forced = place.promoted(2, run_id="later", force="  the page\nwas wrong ")
    assert forced.sentence == f'{NAME} is version 4, was 3; bob lifted its hold: "the page was wrong"'
    force = registry.history(place.store, "tiny", "champion")[-1].force
    assert (force.by, force.reason, HELD in force.sentence) == ("bob", "the page was wrong", True)
    assert place.now() == (4, [])


def test_a_reason_without_a_hold_says_nothing(place: Place) -> None:
    assert place.promoted(1, force="in any case").sentence == f"{NAME} is version 1"
    for n in (1, 2):
        with pytest.raises(UsageError, match="--reason: 0 characters"):
            place.promoted(n, force=" ")
    with pytest.raises(UsageError, match="--reason: 0 characters"):
        promote.make(place.run("x"), "", *given(place, 2), force=" ")
    assert place.now() == (1, [])


def test_what_a_training_passed_over_is_said(place: Place) -> None:
    run, checkpoint = place.run("r"), place.checkpoints[1].model_copy(update={"skipped": [(10, 20)]})
    done = promote.find_or_make(run, checkpoint, None, scored(1))
    assert done.sentence == f"{NAME} is version 1, having diverged before and passed over samples 10 to 20"


def test_a_checkpoint_that_is_not_verified_is_refused(place: Place) -> None:
    checkpoint = place.checkpoints[1].model_copy(update={"state": "committed"})
    with pytest.raises(UsageError, match=rf"The checkpoint {checkpoint.ref.uri} is not verified\."):
        promote.find_or_make(place.run("r"), checkpoint, None, scored(1))
