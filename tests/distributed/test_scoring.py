"""Several ranks verify and score as one process does, to the bit: losses, verdicts, metrics, outcomes and ids."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torchmetrics.functional.classification import multiclass_auroc

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Evaluation
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


def test_ranks_score_as_one_process_to_the_bit(scoring: Scoring) -> None:
    checkpoint = scoring.checkpoint("t")
    alone: dict[tuple[str, int], Evaluation] = {}
    for split, size, _ in CASES:
        if (split, size) not in alone:
            asked_alone = {"split": split, "batch_size": size, "predictions": True, "pairs": ["f1"],
                           "metrics": MANY_METRICS}  # fmt: skip
            request = scoring.evaluation(checkpoint, f"evaluations/a{len(alone)}-0", **asked_alone)
            found = alone[split, size] = evaluate_worker.main(request, lambda report: None)
            assert found.predictions[""].columns == ["prediction", "prediction_0", "prediction_1"]
            table = pq.read_table(scoring.store.local(found.ref) / found.predictions[""].file)
            assert table.num_rows == ROWS[split]
            pairs = pairs_of(scoring.store, found, "f1")
            assert pairs is not None
            assert (pairs[0].shape, pairs[1].shape) == ((ROWS[split],), (ROWS[split], 2))
            prediction, target = (torch.from_numpy(one) for one in pairs[::-1])
            area = float(multiclass_auroc(prediction, target, 2))
            assert found.metrics["area"].value == pytest.approx(area, abs=1e-6), split
    for ranks in (2, 4):
        asked = [
            case_of(
                strategy,
                EVALUATE,
                scoring.evaluation(
                    checkpoint,
                    f"evaluations/r{ranks}c{number}-0",
                    split=split,
                    batch_size=size,
                    predictions=True,
                    pairs=["f1"],
                    metrics=MANY_METRICS,
                ),
            )
            for number, (split, size, strategy) in enumerate(CASES)
        ]
        for (split, size, strategy), answer in zip(CASES, scoring.answers(ranks, asked), strict=True):
            expected = alone[split, size]
            what = f"{strategy} on {ranks} ranks, {split} rows in batches of {size}"
            assert "metrics" in answer, (what, answer)
            found = Evaluation.from_json(answer)
            assert found.metrics == expected.metrics, what
            assert found.undefined == expected.undefined, what
            assert outcomes(scoring, found) == outcomes(scoring, expected), what
            assert found.pairs == expected.pairs, what
            # The files are in the id that is compared below.
            assert found.predictions == expected.predictions, what
            assert found.ref is not None
            assert expected.ref is not None
            assert found.ref.id == expected.ref.id, what


def refusal(request: EvaluateRequest) -> dict[str, Any]:
    """What one process raises."""
    with pytest.raises(UsageError) as refused:
        evaluate_worker.main(request, lambda report: None)
    return refused.value.to_json()


def test_what_ranks_cannot_score_is_refused_on_all_of_them(scoring: Scoring) -> None:
    """A metric object that a rank accumulates; a split without rows, as by one process."""
    metrics = {"object": {"logged": "object", "mode": "min"}}
    checkpoint = scoring.checkpoint("m", metric=True)
    logged = scoring.evaluation(checkpoint, metrics=metrics, model={"metric": True})
    empty = scoring.evaluation(checkpoint, split="none", model={"metric": True})
    cases = [case_of(layout, EVALUATE, empty) for layout in ("ddp", "fsdp")]
    *none, answer = scoring.answers(2, [*cases, case_of("ddp", EVALUATE, logged)])
    assert none == [refusal(empty)] * 2
    assert none[0]["message"].startswith("evaluate.split: the dataset has no rows in a split none")
    assert answer["cause"] == "usage"
    assert answer["message"].startswith("evaluate: test_step logs object as a metric object, which accumulates on each")


def verdict(request: VerifyRequest) -> dict[str, Any]:
    """What one process answers or raises."""
    try:
        return verify_worker.main(request, lambda report: None).to_json()
    except CorruptError as error:
        return error.to_json()


def change_a_byte(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def test_ranks_verify_as_one_process_to_the_bit(scoring: Scoring) -> None:
    """On one row, too: fewer than there are ranks."""
    held, half = scoring.held(21), {"precision": "bf16-true"}
    checkpoints = {
        "whole": scoring.checkpoint("whole", held),
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
            change_a_byte(Path(scoring.store.uri) / checkpoints[name].ref.uri / file)
    asked, expected = [], []
    for name, checkpoint in checkpoints.items():
        request = scoring.verification(checkpoint, **(half if name == "half" else {}))
        alone = verdict(request)
        for layout in LAYOUTS if name == "whole" else ("ddp", "fsdp"):
            asked.append(case_of(layout, VERIFY, request))
            expected.append((f"{name}, {layout}", alone))
    verdicts = {name: alone.get("cause", alone.get("loss")) for name, alone in expected}
    assert (verdicts["whole, ddp"], verdicts["no loss, ddp"]) == (held["loss"], None)
    assert isinstance(verdicts["half, ddp"], float)
    assert {verdicts[f"{name}, ddp"] for name in ("other loss", "not finite", "changed")} == {"corrupt"}
    reasons = {name: alone["message"] for name, alone in expected if "message" in alone}
    assert "blocks.1.linear.weight" in reasons["two not finite, ddp"]
    assert "state.json" in reasons["two changed, ddp"]
    for ranks in (2, 4):
        for (what, alone), answer in zip(expected, scoring.answers(ranks, asked), strict=True):
            assert answer == alone, f"{what} on {ranks} ranks"


def test_a_step_that_raises_on_one_rank_is_not_compared_whatever_the_others_met(scoring: Scoring) -> None:
    """With sharded parameters the other rank waits for the first one's part, and then says that a rank is lost."""
    module = {"first_raises": True}
    request = scoring.verification(scoring.checkpoint("raises", scoring.held(8), **module), **module)
    [answer] = scoring.answers(2, [case_of("fsdp", VERIFY, request)])
    assert (answer.get("loss"), answer.get("raised")) == (None, "KeyError: 'only here'"), answer
