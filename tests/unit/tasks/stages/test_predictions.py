"""`contract.predictions`: the tables beside an evaluation are held to a suite."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from data_contracts.handoffs import Evaluation, MetricValue
from data_contracts.messages.children import EvaluateRequest
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import validate as stage
from tasks.stages.stage import StageOutcome
from tasks.stages.validate import predictions_report, with_predictions
from tests.support.tiny import SPEC, write_project
from training.score.evaluate_worker import Kept, seal
from training.score.outcomes import Outcomes, PredictionTable, Scored

pytestmark = pytest.mark.usefixtures("home")
SCORES = {"": torch.tensor([[0.9, 0.1]] * 30 + [[0.2, 0.8]] * 10), "hard": torch.tensor([[0.4, 0.6]] * 4)}


def E(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_column_{name}", "kwargs": {"column": "prediction", **kwargs}}


NOT_NULL = E("values_to_not_be_null")
RARE = E("values_to_not_be_in_set", value_set=[1], mostly=0.7)


def opened(folder: Path, *expectations: dict[str, Any], **data: Any) -> Run:
    asked = {"predictions": {"suite": {"name": "p", "expectations": list(expectations)}}} if expectations else {}
    contract = {"contract": {**SPEC["contract"], **asked}, "data": {"source": "rows.csv", **data}}
    return open_run(read_spec(write_project(folder, contract)), recorded=False)


def evaluated(run: Run, tables: dict[str, torch.Tensor], number: int = 0) -> Evaluation:
    """An evaluation with tables of these scores, sealed by the evaluator."""
    folder = run.root / f"tables{number}"
    folder.mkdir()
    made = {name: PredictionTable(folder, name) for name in tables}
    for name, table in made.items():
        table.add({"prediction": tables[name]})
    metric = Scored(MetricValue(value=1.0, mode="max", rows=40, unit="dataset"), Outcomes("dataset", [1.0], [40]))
    request = EvaluateRequest.model_construct(
        store=run.store_address, uri=f"evaluations/e-{number}", key="e", sets={}, settings={"number": number},
        evaluate={}, provenance=run.provenance(),
        checkpoint=type("C", (), {"ref": type("R", (), {"id": "c"})}),
    )  # fmt: skip
    return seal(request, {"accuracy": metric}, Kept(folder, made))


def done(evaluation: Evaluation) -> StageOutcome[Evaluation]:
    return StageOutcome(evaluation, "reused", "accuracy 1.0000", evaluation.ref, evaluation.ref.uri)


def checked(run: Run, *sealed: Any, **changes: Any) -> tuple[Evaluation, StageOutcome[Evaluation]]:
    """An evaluation that was sealed and changed, and what its predictions were found to be."""
    evaluation = evaluated(run, *sealed).model_copy(update=changes)
    return evaluation, with_predictions(run, evaluation, done(evaluation), make=True)


def test_each_set_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(tmp_path, NOT_NULL)
    evaluation = evaluated(run, SCORES)
    assert evaluation.predictions["hard"].columns == ["prediction", "prediction_0", "prediction_1"]
    before = with_predictions(run, evaluation, done(evaluation), make=False)
    assert before.lacks == "the predictions are not checked against contract.predictions yet"
    found = with_predictions(run, evaluation, done(evaluation), make=True)
    assert found.error is None
    assert (found.status, found.reused_from) == ("ran", None)
    assert found.sentence == (
        "accuracy 1.0000; contract.predictions: 40 rows meet 1 expectation; "
        "contract.predictions on evaluate.sets.hard: 4 rows meet 1 expectation"
    )
    report = predictions_report(run, evaluation, "hard")
    parents = run.store.manifest(report.ref).provenance["parents"]
    assert [parent["uri"] for parent in parents] == [evaluation.ref.uri]
    monkeypatch.setattr(stage, "checked", lambda *_: pytest.fail("it was checked again"))
    again = with_predictions(run, evaluation, done(evaluation), make=True)
    assert again == replace(found, status="reused", reused_from=evaluation.ref.uri)


def test_a_share_that_is_too_large_ends_the_run_with_the_set_the_rows_and_the_column(tmp_path: Path) -> None:
    run = opened(tmp_path, RARE)
    evaluation, found = checked(run, SCORES)
    assert found.error.exit_code == 3
    said = ("contract.predictions on evaluate.sets.hard: The contract rejects the predictions: "
            "expect_column_values_to_not_be_in_set on prediction: 4 of 4 rows (rows 0, 1, 2, 3)")  # fmt: skip
    assert found.error.message.startswith(said)
    assert found.error.message.endswith("such as 1, 1, 1.")
    assert said in with_predictions(run, evaluation, done(evaluation), make=False).in_plan


def test_milder_failures_are_told(tmp_path: Path) -> None:
    _, found = checked(opened(tmp_path, {**RARE, "severity": "warning"}, NOT_NULL), {"": SCORES["hard"]})
    assert found.error is None
    assert "contract.predictions: 4 rows meet 1 of 2 expectations; expect_column_values_to_not_be_in" in found.sentence


def test_with_sensitive_columns_no_prediction_is_shown(tmp_path: Path) -> None:
    run = opened(tmp_path, RARE, E("mean_to_be_between", max_value=0.5), sensitive=["a"])
    evaluation, found = checked(run, {"": SCORES["hard"]})
    report = predictions_report(run, evaluation, "")
    assert [(one.values, one.observed) for one in report.failures] == [(["•••"] * 4, ""), ([], "")]
    assert " such as 1" not in found.error.message


def test_a_model_without_predictions_is_one_sentence(tmp_path: Path) -> None:
    _, found = checked(opened(tmp_path, NOT_NULL), {"": torch.zeros(0, 2)})
    assert (found.error.exit_code, found.error.message) == (2, "contract.predictions: the set has no rows.")


NAN = float("nan")
# What the last rows of a hundred score, and what the example says of them.
EXAMPLES: list[tuple[list[list[float]], list[str]]] = [
    ([[0.2, 0.8]] * 10, []),
    ([[0.2, 0.8]] * 2, ["expect_column_values_to_be_in_set on prediction: 98 of 100 rows"]),
    ([[NAN, 1.5]] * 10, [
        "expect_column_values_to_not_be_null on prediction: 10 of 100 rows",
        "expect_column_values_to_be_between on prediction_1: 10 of 100 rows",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("last", "said"), EXAMPLES, ids=["good", "one class", "no numbers"])
def test_the_example_in_the_docs_is_as_it_says(
    last: list[list[float]], said: list[str], tmp_path: Path, repository: Path
) -> None:
    block = re.search(r"```yaml\n(contract:\n.*?)```", (repository / "docs/evaluate.md").read_text(), re.DOTALL)
    asked = yaml.safe_load(block[1])["contract"]["predictions"]["suite"]["expectations"]
    scores = torch.tensor([[0.9, 0.1]] * (100 - len(last)) + last)
    error = checked(opened(tmp_path, *asked), {"": scores})[1].error
    assert [words for words in said if words not in error.message] == []
    assert (error is None) == (said == [])


@pytest.mark.parametrize(("factor", "code"), [(1.0, 4), (NAN, 3)])
def test_a_metric_without_a_value_ends_the_run_after_the_contract(factor: float, code: int, tmp_path: Path) -> None:
    scores = {"": SCORES[""] * factor}
    _, found = checked(opened(tmp_path, NOT_NULL), scores, undecided="accuracy has no value.")
    assert found.error.exit_code == code
