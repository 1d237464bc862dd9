"""Gates with confidence: each comparison is entered in the ledger, and asks for more than the one before it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_contracts.errors import UsageError
from data_contracts.gate_results import GateResult
from data_contracts.handoffs import Evaluation, MetricValue, Ref
from data_contracts.pipeline_spec import EvaluateSpec, GateSpec
from data_contracts.pipeline_spec.promote import PromoteSpec
from infra.exposures import spent
from infra.row_sketch import TestRows
from infra.store import Store, open_store
from tasks.evidence.levels import Spent, level
from tasks.evidence.paired_counts import PairedCounts
from tasks.stages.all_gates import is_undecided, judged, lacking, refusing
from tasks.stages.evidence_gates import judge_evidence

ROWS = TestRows.of(np.arange(1_000, dtype=np.uint64))
BETTER = GateSpec(metric="accuracy", min_gain=0, confidence=0.95)
CLEAR, EQUAL, LOST = (40, 10), (20, 20), (10, 40)


def scored(checkpoint: str, value: float = 0.9, **more: Any) -> Evaluation:
    ref = Ref(uri=f"evaluations/{checkpoint}-0", id="0" * 64, seal="1" * 64)
    metric = MetricValue(value=value, mode="max", rows=1_000, unit="row")
    fields = {"key": checkpoint, "checkpoint_id": checkpoint, "dataset_ids": {}, "metrics": {"accuracy": metric}}
    return Evaluation(ref=ref, **{**fields, **more})


class Scores:
    """On how many rows each candidate won and lost against whoever was champion."""

    def __init__(self, counts: dict[str, tuple[int, int]], rows: TestRows = ROWS) -> None:
        self.counts, self.rows, self.asked = counts, rows, 0

    def paired(self, gate: GateSpec, candidate: Evaluation, champion: Evaluation) -> PairedCounts:
        self.asked += 1
        if candidate.checkpoint_id in self.counts:
            return PairedCounts(*self.counts[candidate.checkpoint_id], 1_000)
        return PairedCounts(*reversed(self.counts[champion.checkpoint_id]), 1_000)

    def test_rows(self, evaluation: Evaluation, metric: str) -> TestRows:
        return self.rows

    def units(self, gate: GateSpec) -> None:
        return None


class Nights:
    """A pipeline that compares each candidate with the same champion, on rows that stay."""

    def __init__(self, store: Store, **promote: Any) -> None:
        metrics = {"accuracy": {"logged": "acc", "mode": "max"}, "f1": {"logged": "f1", "mode": "max"}}
        evaluate = EvaluateSpec.model_validate({"metrics": metrics})
        spec = SimpleNamespace(promote=PromoteSpec.model_validate(promote), evaluate=evaluate)
        self.run: Any = SimpleNamespace(store=store, spec=spec, external=False)

    def judge(self, candidate: str, counts: tuple[int, int], *gates: GateSpec, rows: TestRows = ROWS) -> GateResult:
        scores: Any = Scores({candidate: counts}, rows)
        return judge_evidence(self.run, gates or (BETTER,), scored(candidate), scored("champion", 0.88), scores)[0]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def test_each_comparison_asks_for_more(store: Store) -> None:
    nights = Nights(store)
    levels = []
    for night in range(5):
        evidence = nights.judge(f"c{night}", EQUAL).evidence
        assert evidence is not None
        assert (evidence.verdict, evidence.comparisons, evidence.promotions) == ("insufficient", night, 0)
        levels.append(evidence.level)
    assert levels == [level(1 - 0.95, Spent(night)) for night in range(5)]


def test_a_retry_spends_nothing_and_gets_the_same_answer(store: Store) -> None:
    nights = Nights(store)
    first = nights.judge("a", EQUAL)
    nights.judge("b", EQUAL)
    assert nights.judge("a", EQUAL) == first
    assert spent(store, ROWS).before == 2


def test_another_question_about_the_same_two_models_is_another_comparison(store: Store) -> None:
    nights = Nights(store)
    nights.judge("a", EQUAL)
    nights.judge("a", EQUAL, GateSpec(metric="accuracy", margin=0.01, confidence=0.95))
    nights.judge("a", EQUAL, GateSpec(metric="accuracy", min_gain=0, confidence=0.9))
    assert spent(store, ROWS).before == 3


def test_a_better_candidate_is_marked_and_counts_more(store: Store) -> None:
    nights = Nights(store)
    result = nights.judge("a", CLEAR)
    assert result.met
    assert result.evidence is not None
    assert (result.evidence.verdict, result.evidence.rows_needed) == ("better", None)
    assert (spent(store, ROWS).before, spent(store, ROWS).promoted) == (1, 1)
    after = nights.judge("b", EQUAL).evidence
    assert after is not None
    assert after.level == level(1 - 0.95, Spent(1, 1))


def test_one_of_two_gates_is_not_a_promotion(store: Store) -> None:
    nights = Nights(store)
    gates = BETTER, GateSpec(metric="accuracy", min_gain=0.5, confidence=0.95)
    assert nights.judge("a", CLEAR, *gates).met
    assert spent(store, ROWS).promoted == 0


def test_a_search_counts_all_its_candidates(store: Store) -> None:
    evidence = Nights(store, candidates=20).judge("a", EQUAL).evidence
    assert evidence is not None
    assert evidence.comparisons == 19
    assert spent(store, ROWS).before == 20


def test_rows_that_are_used_up_decide_nothing_and_spend_nothing(store: Store) -> None:
    nights = Nights(store, candidates=100_000)
    assert nights.judge("first", (500, 0)).met
    before = spent(store, ROWS)
    result = nights.judge("best", (500, 0))
    assert (result.met, result.skipped, result.evidence) == (False, True, None)
    assert "the test rows are used up" in result.sentence
    assert "1,000 fresh test rows" in result.sentence
    assert spent(store, ROWS) == before
    fresh = TestRows.of(np.arange(5_000, 6_000, dtype=np.uint64))
    assert Nights(store).judge("best", CLEAR, rows=fresh).met


SENTENCES = [
    (
        CLEAR,
        "better",
        [
            "gains 0.0300",
            "+0.0",
            "which shows a gain above 0",
            "95 % interval +0.0",
            "p = 1.2e-05; accepted is at most 0.025",
        ],
    ),
    (LOST, "worse", ["loses 0.0300", "worse than asked for"]),
    ((30, 20), "insufficient", ["insufficient evidence of a gain above 0", "fresh rows would show it"]),
    (EQUAL, "insufficient", ["with this gain, no number of rows would show it"]),
]


@pytest.mark.parametrize(("counts", "verdict", "words"), SENTENCES)
def test_each_verdict_has_its_own_sentence(
    store: Store, counts: tuple[int, int], verdict: str, words: list[str]
) -> None:
    result = Nights(store).judge("a", counts)
    assert result.evidence is not None
    assert result.evidence.verdict == verdict
    assert [one for one in words if one not in result.sentence] == []
    assert "on the same 1,000 rows" in result.sentence
    assert "comparison" not in result.sentence


def test_a_sealed_set_tells_its_verdict_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = scored("a", metrics={}, sealed=["accuracy"])
    monkeypatch.setattr("tasks.stages.evidence_gates.unsealed", lambda store, one: scored(one.checkpoint_id))
    results = {}
    for name, counts in (("better", CLEAR), ("worse", LOST), ("insufficient", EQUAL)):
        rows = TestRows.of(np.array([len(results)], np.uint64))
        scores: Any = Scores({"a": counts}, rows)
        [results[name]] = judge_evidence(Nights(store).run, [BETTER], sealed, scored("champion"), scores)
    assert [one.met for one in results.values()] == [True, False, False]
    assert results["worse"] == results["insufficient"]
    for result in results.values():
        assert (result.value, result.champion_value, result.evidence, result.sealed) == (0, None, None, True)
    assert results["worse"].sentence == "accuracy: the sealed set's 1,000 rows do not show a gain above 0"


def test_a_candidate_that_another_gate_refuses_spends_nothing(store: Store) -> None:
    nights = Nights(store, gates=[BETTER, {"metric": "accuracy", "min": 0.99}])
    evidence, plain = judged(nights.run, None, scored("a"), scored("champion"))
    assert (evidence.skipped, evidence.met, plain.met) == (True, False, False)
    assert "another gate is not met" in evidence.sentence
    assert spent(store, ROWS).before == 0
    assert refusing(nights.run, [evidence, plain]) == [plain]


def test_without_a_champion_nothing_is_compared(store: Store) -> None:
    [result] = judged(Nights(store, gates=[BETTER]).run, None, scored("a"), None)
    assert result.met
    assert "no champion yet" in result.sentence


@pytest.mark.parametrize(("counts", "promotes"), [(EQUAL, True), (LOST, False)])
def test_when_insufficient_promote(store: Store, counts: tuple[int, int], promotes: bool) -> None:
    nights = Nights(store, when_insufficient="promote")
    result = nights.judge("a", counts)
    assert (refusing(nights.run, [result]) == []) is promotes
    assert is_undecided(result) is promotes
    assert ("promoted although the evidence is insufficient" in lacking([result])) is True
    assert refusing(Nights(store).run, [result]) == [result]


def test_nothing_is_spent_if_the_scores_cannot_be_compared(store: Store) -> None:
    class Broken(Scores):
        def paired(self, gate: GateSpec, candidate: Evaluation, champion: Evaluation) -> PairedCounts:
            raise UsageError("it cannot be resampled")

    with pytest.raises(UsageError):
        judge_evidence(Nights(store).run, [BETTER], scored("a"), scored("b"), Broken({}))  # type: ignore[arg-type]
    assert spent(store, ROWS).before == 0
