"""Gates with confidence: each comparison is entered in the ledger, and asks for more than the one before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import pytest

from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.handoffs import Evaluation, MetricValue, Ref
from data_contracts.pipeline_spec import GateSpec
from data_contracts.records import GateResult
from infra.models.exposures import spent
from infra.records.evaluations import TestRows
from infra.store import Store
from tasks.evidence.decision import Spent, level
from tasks.evidence.significance import PairedCounts, Proportion
from tasks.gates.evidence_gates import judge_evidence
from tasks.gates.gates import is_undecided, lacking, more_rows, refusing
from tasks.stages.promote import judged
from tests.support.runs import make_run
from tests.support.tiny import SPEC

ROWS = TestRows.of(np.arange(1_000, dtype=np.uint64))
BETTER = GateSpec(metric="accuracy", min_gain=0, confidence=0.95)
CLEAR, EQUAL, LOST = (40, 10), (20, 20), (10, 40)


def scored(checkpoint: str, value: float = 0.9, **more: Any) -> Evaluation:
    metric = MetricValue(value=value, mode="max", rows=1_000, unit="row")
    fields = {"key": checkpoint, "checkpoint_id": checkpoint, "dataset_ids": {}, "metrics": {"accuracy": metric}}
    return Evaluation(ref=Ref(uri=f"evaluations/{checkpoint}-0", id="0" * 64, seal="1" * 64), **{**fields, **more})


class Scores:
    """On how many rows each candidate won and lost against whoever was champion."""

    def __init__(self, counts: dict[str, tuple[int, int]], rows: TestRows = ROWS) -> None:
        self.counts, self.rows = counts, rows

    def paired(self, gate: GateSpec, candidate: Evaluation, champion: Evaluation) -> PairedCounts:
        if candidate.checkpoint_id in self.counts:
            return PairedCounts(*self.counts[candidate.checkpoint_id], 1_000)
        return PairedCounts(*reversed(self.counts[champion.checkpoint_id]), 1_000)

    def alone(self, gate: GateSpec, evaluation: Evaluation, sign: Literal[1, -1]) -> Proportion:
        return Proportion(self.counts[evaluation.checkpoint_id][0], 1_000, sign)

    def test_rows(self, evaluation: Evaluation, gate: GateSpec) -> TestRows:
        return self.rows

    def units(self, gate: GateSpec) -> None:
        return None

    def batches(self, gate: GateSpec, evaluation: Evaluation) -> None:
        return None


class Nights:
    """A pipeline that compares each candidate with the same champion, on rows that stay."""

    def __init__(self, store: Store, **promote: Any) -> None:
        metrics = {"accuracy": {"logged": "acc", "mode": "max"}, "f1": {"logged": "f1", "mode": "max"}}
        self.run = make_run(store, spec={**SPEC, "evaluate": {"metrics": metrics}, "promote": promote})

    def judge(self, candidate: str, counts: tuple[int, int], *gates: GateSpec, rows: TestRows = ROWS) -> GateResult:
        scores: Any = Scores({candidate: counts}, rows)
        return judge_evidence(self.run, gates or (BETTER,), scored(candidate), scored("champion", 0.88), scores)[0]


@pytest.fixture
def nights(store: Store) -> Nights:
    return Nights(store)


def test_each_comparison_asks_for_more(nights: Nights) -> None:
    levels = []
    for night in range(5):
        evidence = nights.judge(f"c{night}", EQUAL).evidence
        assert (evidence.verdict, evidence.comparisons, evidence.promotions) == ("insufficient", night, 0)
        levels.append(evidence.level)
    assert levels == [level(1 - 0.95, Spent(night)) for night in range(5)]


def test_a_retry_spends_nothing_and_gets_the_same_answer(nights: Nights, store: Store) -> None:
    first = nights.judge("a", EQUAL)
    nights.judge("b", EQUAL)
    again = nights.judge("a", EQUAL)
    assert "have decided 2 comparisons" in again.ledger, "by now"
    assert again.model_copy(update={"ledger": first.ledger}) == first
    assert spent(store, ROWS).before == 2


def test_another_question_about_the_same_two_models_is_another_comparison(nights: Nights, store: Store) -> None:
    nights.judge("a", EQUAL)
    nights.judge("a", EQUAL, GateSpec(metric="accuracy", margin=0.01, confidence=0.95))
    nights.judge("a", EQUAL, GateSpec(metric="accuracy", min_gain=0, confidence=0.9))
    assert spent(store, ROWS).before == 3


def test_a_better_candidate_is_marked_and_counts_more(nights: Nights, store: Store) -> None:
    result = nights.judge("a", CLEAR)
    assert result.met
    assert (result.evidence.verdict, result.evidence.rows_needed) == ("better", None)
    assert (spent(store, ROWS).before, spent(store, ROWS).promoted) == (1, 1)
    assert nights.judge("b", EQUAL).evidence.level == level(1 - 0.95, Spent(1, 1))


def test_other_scores_and_another_number_of_candidates_are_another_comparison(store: Store) -> None:
    scores: Any = Scores({"a": EQUAL})
    for at, key in enumerate(("key", "key", "another perturbation")):
        judge_evidence(Nights(store).run, [BETTER], scored("a", key=key), scored("champion"), scores)
        assert spent(store, ROWS).before == (1, 1, 2)[at]
    judge_evidence(Nights(store, candidates=20).run, [BETTER], scored("a", key="key"), scored("champion"), scores)
    assert spent(store, ROWS).before == 22


@pytest.mark.parametrize(("asked", "promoted"), [({"min_gain": 0.5}, 0), ({"min": 0.01}, 1)])
def test_two_gates_are_one_comparison_and_a_promotion_only_if_both_are_met(
    asked: dict[str, float], promoted: int, store: Store
) -> None:
    assert Nights(store).judge("a", CLEAR, BETTER, GateSpec(metric="accuracy", confidence=0.95, **asked)).met
    assert (spent(store, ROWS).before, spent(store, ROWS).promoted) == (1, promoted)


@pytest.mark.parametrize("when", ["keep", "promote"])
def test_rows_that_are_used_up_decide_nothing_spend_nothing_and_promote_nobody(store: Store, when: str) -> None:
    nights = Nights(store, candidates=100_000, when_insufficient=when)
    assert nights.judge("first", (500, 0)).met
    before = spent(store, ROWS)
    for counts in ((500, 0), (0, 900)):
        result = nights.judge(f"candidate {counts}", counts)
        assert (result.met, result.skipped, result.evidence) == (False, True, None)
        assert refusing(nights.run, [result]) == [result]
    assert "the test rows are used up" in result.sentence
    assert "1,000 fresh test rows" in result.sentence
    assert spent(store, ROWS) == before
    assert Nights(store).judge("best", CLEAR, rows=TestRows.of(np.arange(5_000, 6_000, dtype=np.uint64))).met


def test_only_the_gate_whose_rows_are_used_up_says_so(store: Store) -> None:
    others = TestRows.of(np.arange(7_000, 8_000, dtype=np.uint64))
    Nights(store, candidates=100_000).judge("first", (500, 0))
    gates = BETTER, GateSpec(metric="accuracy", min_gain=0.01, confidence=0.95)
    two: Any = Scores({"a": CLEAR})
    two.test_rows = lambda _, gate: others if gate.min_gain else ROWS
    own, other = judge_evidence(Nights(store).run, gates, scored("a"), scored("champion"), two)
    assert "they have decided 100,000 comparisons" in own.sentence
    assert other.sentence == "accuracy is not compared: the test rows of another gate are used up"


@pytest.mark.parametrize(
    ("paired", "error", "words"),
    [
        (Mock(return_value=SimpleNamespace(gain=float("nan"), rows=1_000)), InsufficientEvidence,
         "accuracy has no value for one of the models, so the gate"),
        (Mock(side_effect=UsageError("it cannot be resampled")), UsageError, "it cannot be resampled"),
    ],
)  # fmt: skip
def test_a_gain_that_is_no_number_decides_nothing_and_spends_nothing(
    store: Store, paired: Mock, error: type[UsageError], words: str
) -> None:
    scores: Any = Scores({})
    scores.paired = paired
    with pytest.raises(error, match=words):
        judge_evidence(Nights(store).run, [BETTER], scored("a"), scored("champion"), scores)
    assert spent(store, ROWS).before == 0


@pytest.mark.parametrize(
    ("counts", "verdict", "words"),
    [
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
    ],
)
def test_each_verdict_has_its_own_sentence(
    store: Store, counts: tuple[int, int], verdict: str, words: list[str]
) -> None:
    result = Nights(store).judge("a", counts)
    assert (result.evidence.verdict, [one for one in words if one not in result.sentence]) == (verdict, [])
    assert "on the same 1,000 rows" in result.sentence
    assert "comparison" not in result.sentence


@pytest.mark.parametrize(("counts", "met"), [(EQUAL, True), ((40, 70), False)])
def test_a_margin_is_what_a_candidate_may_lose(store: Store, counts: tuple[int, int], met: bool) -> None:
    result = Nights(store).judge("a", counts, GateSpec(metric="accuracy", margin=0.02, confidence=0.95))
    assert (result.met, result.bound) == (met, -0.02)


@pytest.mark.parametrize(
    ("asked", "count", "verdict", "words"),
    [
        (
            {"min": 0.9},
            930,
            "better",
            "accuracy is 0.9300 on 1,000 rows (95 % interval 0.9124 to 0.9450), which shows a",
        ),
        (
            {"min": 0.9},
            910,
            "insufficient",
            "insufficient evidence of a value above 0.9 (p = 0.16; accepted is at most",
        ),
        ({"min": 0.9}, 895, "insufficient", "with this value, no number of rows would show it"),
        ({"min": 0.9}, 870, "worse", "worse than asked for, which was a value above 0.9"),
        (
            {"max": 0.1},
            70,
            "better",
            "accuracy is 0.0700 on 1,000 rows (95 % interval 0.0550 to 0.0876), which shows a",
        ),
        ({"max": 0.1}, 95, "insufficient", "insufficient evidence of a value below 0.1"),
        ({"max": 0.1}, 130, "worse", "worse than asked for, which was a value below 0.1"),
    ],
)
@pytest.mark.parametrize("champion", [None, scored("champion")])
def test_a_value_must_be_shown(
    asked: dict[str, float], count: int, verdict: str, words: str, champion: Evaluation | None, store: Store
) -> None:
    gate = GateSpec.model_validate({"metric": "accuracy", "confidence": 0.95, **asked})
    scores: Any = Scores({"a": (count, 0)})
    [found] = judge_evidence(Nights(store).run, [gate], scored("a"), champion, scores)
    assert (found.met, found.evidence.verdict, found.champion_value) == (verdict == "better", verdict, None)
    assert found.value == found.evidence.estimate == count / 1_000
    assert found.evidence.low < found.value < found.evidence.high
    assert words in found.sentence
    assert spent(store, ROWS).before == 1


def test_without_a_champion_a_value_must_be_shown_and_a_gain_need_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores: Any = Scores({"a": (870, 0)})
    monkeypatch.setattr("tasks.gates.evidence_gates.SetScores", lambda run, sets: scores)
    nights = Nights(store, gates=[BETTER, {"metric": "accuracy", "min": 0.9, "confidence": 0.95}])
    gain, value = judged(nights.run, None, scored("a"), None)
    assert (gain.met, value.met) == (True, False)
    assert "no champion yet" in gain.sentence
    assert refusing(nights.run, [gain, value]) == [value]


def test_a_sealed_set_tells_its_verdict_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = scored("a", metrics={}, sealed=["accuracy"])
    monkeypatch.setattr("tasks.gates.evidence_gates.unsealed", lambda store, one: scored(one.checkpoint_id))
    results = {}
    for name, counts in (("better", CLEAR), ("worse", LOST), ("insufficient", EQUAL)):
        scores: Any = Scores({"a": counts}, TestRows.of(np.array([len(results)], np.uint64)))
        [results[name]] = judge_evidence(Nights(store).run, [BETTER], sealed, scored("champion"), scores)
    assert [one.met for one in results.values()] == [True, False, False]
    assert results["worse"] == results["insufficient"]
    for result in results.values():
        assert (result.value, result.champion_value, result.evidence, result.sealed) == (0, None, None, True)
    assert results["worse"].sentence == "accuracy: the sealed set's 1,000 rows do not show a gain above 0"
    assert results["worse"].ledger.startswith("the 1,000 test rows have decided 1 comparison:")


def test_gates_on_sealed_sets_have_one_verdict(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each with its own would give away the gain of 0.03, as a ruler does.
    sealed = scored("a", metrics={}, sealed=["accuracy"])
    monkeypatch.setattr("tasks.gates.evidence_gates.unsealed", lambda store, one: scored(one.checkpoint_id))
    scores: Any = Scores({"a": CLEAR})
    ruler = [GateSpec(metric="accuracy", min_gain=at / 100, confidence=0.95) for at in range(-5, 6)]
    found = judge_evidence(Nights(store).run, ruler, sealed, scored("champion"), scores)
    assert {one.met for one in found} == {False}
    assert {one.sentence for one in found} == {
        "accuracy: the rows of sealed sets do not show all that the 11 gates on them ask for"
    }
    assert spent(store, ROWS).promoted == 0
    met = judge_evidence(Nights(store).run, ruler[:6], sealed, scored("champion"), scores)
    assert {one.met for one in met} == {True}
    assert (spent(store, ROWS).before, spent(store, ROWS).promoted) == (2, 1)


def test_each_set_of_rows_counts_what_it_found(store: Store) -> None:
    metrics = {f"{name}accuracy": scored("c").metrics["accuracy"] for name in ("", "other/")}
    others = TestRows.of(np.arange(7_000, 8_000, dtype=np.uint64))

    class TwoSets(Scores):
        def paired(self, gate: GateSpec, candidate: Evaluation, champion: Evaluation) -> PairedCounts:
            won, lost = CLEAR if gate.name == "accuracy" else EQUAL
            return PairedCounts(won, lost, 1_000) if candidate.checkpoint_id == "a" else PairedCounts(lost, won, 1_000)

    gates = [GateSpec(metric=name, min_gain=0, confidence=0.95) for name in metrics]
    models = scored("a", metrics=metrics), scored("champion", metrics=metrics)
    two: Any = TwoSets({})
    two.test_rows = lambda _, gate: others if "/" in gate.name else ROWS
    assert [one.met for one in judge_evidence(Nights(store).run, gates, *models, two)] == [True, False]
    assert [(spent(store, its).before, spent(store, its).promoted) for its in (ROWS, others)] == [(1, 1), (1, 0)]


def test_a_candidate_that_another_gate_refuses_spends_nothing(store: Store) -> None:
    nights = Nights(store, gates=[BETTER, {"metric": "accuracy", "min": 0.99}])
    evidence, plain = judged(nights.run, None, scored("a"), scored("champion"))
    assert (evidence.skipped, evidence.met, plain.met) == (True, False, False)
    assert "another gate is not met" in evidence.sentence
    assert spent(store, ROWS).before == 0
    assert refusing(nights.run, [evidence, plain]) == [plain]


@pytest.mark.parametrize(("counts", "promotes"), [(EQUAL, True), (LOST, False)])
def test_when_insufficient_promote(store: Store, counts: tuple[int, int], promotes: bool) -> None:
    nights = Nights(store, when_insufficient="promote")
    result = nights.judge("a", counts)
    assert (refusing(nights.run, [result]) == []) is promotes
    assert is_undecided(result) is promotes
    assert ("promoted although the evidence is insufficient" in lacking([result])) is True
    assert refusing(Nights(store).run, [result]) == [result]


def test_the_remedy_offers_only_what_would_help(store: Store) -> None:
    missed = Nights(store).judge("a", EQUAL)
    assert "promote.when_insufficient: promote accepts" in more_rows(Nights(store).run, [missed])
    already = Nights(store, when_insufficient="promote").run
    hidden = missed.model_copy(update={"sealed": True})
    for said in (more_rows(already, [missed]), more_rows(Nights(store).run, [missed, hidden])):
        assert said == "Give the set more test rows, or fresh ones, or train a better candidate."


def test_a_result_says_what_the_rows_can_still_decide(nights: Nights, store: Store) -> None:
    first, second = nights.judge("a", CLEAR), nights.judge("b", EQUAL)
    assert first.ledger.startswith(
        "the 1,000 test rows have decided 1 comparison (1 in a candidate's favour): a gain must be 1.32 times as"
    )
    assert "have decided 2 comparisons (1 in" in second.ledger
    assert "1,000 fresh rows are due after" in second.ledger
    fresh = TestRows.of(np.arange(5_000, 6_000, dtype=np.uint64))
    slice_of_it = TestRows.of(np.arange(600, dtype=np.uint64))
    assert "(1 in a candidate's favour)" in nights.judge("d", EQUAL, rows=slice_of_it).ledger, "as a plan counts"
    last = Nights(store, candidates=100_000).judge("c", (500, 0), rows=fresh)
    assert last.ledger.startswith("the test rows are used up: they have decided 100,000 comparisons (1 in")
