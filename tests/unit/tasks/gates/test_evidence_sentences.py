"""What verdicts and the exposure ledger say: words for a loss that is accepted, for batches, and for several gates."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.pipeline_spec import GateSpec
from data_contracts.records import Evidence, GateResult
from tasks.gates.evidence_gates import gate_sentence
from tasks.gates.gates import ledger_sentences

MARGIN = GateSpec(metric="accuracy", margin=0.01, confidence=0.95)


def sentence(verdict: str, estimate: float, **more: Any) -> str:
    figures = {"low": estimate - 0.02, "high": estimate + 0.02, "p_value": 0.2, "level": 0.025, "confidence": 0.95}
    counts = {"comparisons": 0, "promotions": 0, "rows": 1_000, "method": ""}
    found = {"verdict": verdict, "estimate": estimate, **figures, **counts, **more}
    return gate_sentence(MARGIN, Evidence.model_validate(found), (0.9, 0.9 - estimate))


@pytest.mark.parametrize(
    ("verdict", "estimate", "words"),
    [
        (
            "better",
            0.03,
            "it gains 0.0300 (95 % interval +0.01 to +0.0500), which shows that it loses less than 0.01 (p",
        ),
        (
            "insufficient",
            0.0,
            "insufficient evidence that it loses less than 0.01 (p = 0.2; accepted is at most 0.025)",
        ),
        ("worse", -0.05, "it loses 0.0500 (95 % interval −0.0700 to −0.0300), worse than asked for: it may lose less"),
    ],
)
def test_a_loss_that_is_accepted_is_told_in_words(verdict: str, estimate: float, words: str) -> None:
    assert words in sentence(verdict, estimate)


def test_batches_and_units_are_counted() -> None:
    assert "on the same 1,000 rows in 4 batches: it" in sentence("better", 0.03, batches=4)
    assert "on the same 1,000 rows of 9 units: it" in sentence("better", 0.03, units=9)


def test_sentences_about_the_rows_of_several_gates() -> None:
    def gate(metric: str, part: str, ledger: str) -> GateResult:
        return GateResult(metric=metric, met=True, value=0, bound=0, slice=part, sentence="", ledger=ledger)

    gates = [gate("a", "", "the rows"), gate("b", "", "the rows"), gate("hard/a", "old", "the rows"), gate("c", "", "")]
    assert ledger_sentences(gates) == ["The rows.", "Set hard, slice old: the rows."]
