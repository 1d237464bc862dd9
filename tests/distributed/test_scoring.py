"""Several ranks verify and score as one process does, to the bit: losses, verdicts, metrics, outcomes and ids.

All cases are asked of two ranks and of four, which carry them out one after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torchmetrics.functional.classification import multiclass_auroc

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Checkpoint, Evaluation
from data_contracts.messages.children import EVALUATE, VERIFY, EvaluateRequest, VerifyRequest
from infra.records.evaluations import OUTCOMES, pairs_of
from tests.support.scoring import LAYOUTS, METRICS, ROWS, Scoring, case_of
from training.score import evaluate_worker, verify_worker

pytestmark = pytest.mark.warm

# Case: split, rows of a batch, strategy. 53 rows in batches of 8 are 7 batches: the last round lacks some.
CASES = [
    ("many", 8, "ddp"), ("many", 8, "fsdp"), ("many", 8, "hsdp"), ("few", 2, "ddp"), ("few", 8, "fsdp"),
]  # fmt: skip


# Whether its scores are logits is decided from all rows, whichever rank has them.
AREA = {"class_path": "torchmetrics.classification.MulticlassAUROC", "init_args": {"num_classes": 2}, "target": "y"}
MANY_METRICS = {**METRICS, "area": {**AREA, "mode": "max"}}


def outcomes(scoring: Scoring, evaluation: Evaluation) -> bytes:
    assert evaluation.ref is not None
    return (scoring.store.local(evaluation.ref) / OUTCOMES).read_bytes()


def to_score(scoring: Scoring, checkpoint: Checkpoint, uri: str, split: str, size: int) -> EvaluateRequest:
    return scoring.evaluation(
        checkpoint, uri, split=split, batch_size=size, predictions=True, pairs=["f1"], metrics=MANY_METRICS
    )


@dataclass
class Asked:
    """What is asked of ranks: each case by its name, in this order.

    Attributes:
        checkpoint: what is scored besides.
        evaluations: what one process makes of a split in batches of a size.
        verdicts: what one process answers or raises, by case.
        held: a loss that is recorded with some checkpoints.
    """

    cases: dict[str, dict[str, Any]]
    checkpoint: Checkpoint
    evaluations: dict[tuple[str, int], Evaluation]
    verdicts: dict[str, dict[str, Any]]
    held: dict[str, Any]


@pytest.fixture(scope="module")
def asked(scoring: Scoring) -> Asked:
    checkpoint = scoring.checkpoint("t")
    evaluations: dict[tuple[str, int], Evaluation] = {}
    for number, (split, size) in enumerate(dict.fromkeys((split, size) for split, size, _ in CASES)):
        request = to_score(scoring, checkpoint, f"evaluations/a{number}-0", split, size)
        evaluations[split, size] = evaluate_worker.main(request, lambda report: None)
    cases, verdicts = {}, {}
    held, half = scoring.held(21), {"precision": "bf16-true"}
    checkpoints = {
        "whole": scoring.checkpoint("whole", held),
        # Fewer rows than there are ranks.
        "one row": scoring.checkpoint("row", scoring.held(1)),
        "half": scoring.checkpoint("half", scoring.held(21, **half), **half),
        "no loss": scoring.checkpoint("none"),
        "other loss": scoring.checkpoint("other", {**held, "loss": math.nextafter(held["loss"], 2)}),
        "not finite": scoring.checkpoint("nan", broken=["outlet.weight"]),
        "changed": scoring.checkpoint("changed"),
        # The second fault is rank 0's, the first another rank's.
        "two not finite": scoring.checkpoint("nans", broken=["blocks.1.linear.weight", "outlet.bias"]),
        "two changed": scoring.checkpoint("both"),
    }
    for name, files in (("changed", ["weights-0.safetensors"]), ("two changed", ["state.json", "train.json"])):
        for file in files:
            path = Path(scoring.store.uri) / checkpoints[name].ref.uri / file
            path.chmod(0o600)
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    for name, verified in checkpoints.items():
        request = scoring.verification(verified, **(half if name == "half" else {}))
        alone = verdict(request)
        for layout in LAYOUTS if name == "whole" else ("ddp", "fsdp"):
            cases[f"{name}, {layout}"] = case_of(layout, VERIFY, request)
            verdicts[f"{name}, {layout}"] = alone
    metrics = {"object": {"logged": "object", "mode": "min"}}
    with_metric = scoring.checkpoint("m", metric=True)
    empty = scoring.evaluation(with_metric, split="none", model={"metric": True})
    for layout in ("ddp", "fsdp"):
        cases[f"empty, {layout}"] = case_of(layout, EVALUATE, empty)
        verdicts[f"empty, {layout}"] = verdict(empty)
    cases["object"] = case_of("ddp", EVALUATE, scoring.evaluation(with_metric, metrics=metrics, model={"metric": True}))
    # With sharded parameters the other rank waits for the first one's part, and then says that a rank is lost.
    module = {"first_raises": True}
    request = scoring.verification(scoring.checkpoint("raises", scoring.held(8), **module), **module)
    cases["raises"] = case_of("fsdp", VERIFY, request)
    return Asked(cases, checkpoint, evaluations, verdicts, held)


def verdict(request: VerifyRequest | EvaluateRequest) -> dict[str, Any]:
    """What one process answers or raises."""
    try:
        if isinstance(request, EvaluateRequest):
            return evaluate_worker.main(request, lambda report: None).to_json()
        return verify_worker.main(request, lambda report: None).to_json()
    except (CorruptError, UsageError) as error:
        return error.to_json()


@pytest.fixture(scope="module", params=[2, 4])
def answers(request: pytest.FixtureRequest, scoring: Scoring, asked: Asked) -> dict[Any, dict[str, Any]]:
    """What so many ranks answer to each case."""
    checkpoint, ranks = asked.checkpoint, request.param
    scored = {
        case: case_of(case[2], EVALUATE, to_score(scoring, checkpoint, f"evaluations/r{ranks}c{number}-0", *case[:2]))
        for number, case in enumerate(CASES)
    }
    cases: dict[Any, dict[str, Any]] = {**scored, **asked.cases}
    return dict(zip(cases, scoring.answers(ranks, list(cases.values())), strict=True))


def test_one_process_scores_every_row_once(scoring: Scoring, asked: Asked) -> None:
    for (split, _), found in asked.evaluations.items():
        assert found.predictions[""].columns == ["prediction", "prediction_0", "prediction_1"]
        table = pq.read_table(scoring.store.local(found.ref) / found.predictions[""].file)
        assert table.num_rows == ROWS[split]
        pairs = pairs_of(scoring.store, found, "f1")
        assert (pairs[0].shape, pairs[1].shape) == ((ROWS[split],), (ROWS[split], 2))
        prediction, target = (torch.from_numpy(one) for one in pairs[::-1])
        area = float(multiclass_auroc(prediction, target, 2))
        assert found.metrics["area"].value == pytest.approx(area, abs=1e-6), split


@pytest.mark.parametrize("case", CASES)
def test_ranks_score_as_one_process_to_the_bit(
    case: tuple[str, int, str], scoring: Scoring, asked: Asked, answers: dict[Any, dict[str, Any]]
) -> None:
    expected = asked.evaluations[case[:2]]
    assert "metrics" in answers[case], answers[case]
    found = Evaluation.from_json(answers[case])
    assert found.metrics == expected.metrics
    assert found.undefined == expected.undefined
    assert outcomes(scoring, found) == outcomes(scoring, expected)
    assert found.pairs == expected.pairs
    # The files are in the id that is compared below.
    assert found.predictions == expected.predictions
    assert found.ref.id == expected.ref.id


def test_what_ranks_cannot_score_is_refused_on_all_of_them(answers: dict[Any, dict[str, Any]]) -> None:
    """A metric object that a rank accumulates; a split without rows, as by one process."""
    assert answers["empty, ddp"]["message"].startswith("evaluate.split: the dataset has no rows in a split none")
    assert answers["object"]["cause"] == "usage"
    assert answers["object"]["message"].startswith(
        "evaluate: test_step logs object as a metric object, which accumulates on each"
    )


def test_ranks_verify_and_refuse_as_one_process_to_the_bit(asked: Asked, answers: dict[Any, dict[str, Any]]) -> None:
    verdicts = {name: alone.get("cause", alone.get("loss")) for name, alone in asked.verdicts.items()}
    assert (verdicts["whole, ddp"], verdicts["no loss, ddp"]) == (asked.held["loss"], None)
    assert isinstance(verdicts["half, ddp"], float)
    assert {verdicts[f"{name}, ddp"] for name in ("other loss", "not finite", "changed")} == {"corrupt"}
    assert "blocks.1.linear.weight" in asked.verdicts["two not finite, ddp"]["message"]
    assert "state.json" in asked.verdicts["two changed, ddp"]["message"]
    assert {name: answers[name] for name in asked.verdicts} == asked.verdicts


def test_a_step_that_raises_on_one_rank_is_not_compared_whatever_the_others_met(
    answers: dict[Any, dict[str, Any]],
) -> None:
    raised = answers["raises"]
    assert (raised.get("loss"), raised.get("raised")) == (None, "KeyError: 'only here'"), raised
