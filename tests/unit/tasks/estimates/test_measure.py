"""What the child is asked, and what is said when it cannot answer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import Hung, UserCodeError
from data_contracts.messages.commands import ModuleSizes, StepMemory
from tasks.estimates import estimate as module
from tasks.estimates.estimate import MOST_ROWS, MOST_S, measure
from tasks.run.run import Run
from tests.support.runs import make_run
from tests.support.tiny import SPEC

DATASET: Any = SimpleNamespace(columns={"x": "int64"}, rows=lambda split: {"train": 100}[split])


def run(**lightning: Any) -> Run:
    train, data = {**SPEC["train"], "global_batch_size": 8}, {"source": "rows.csv", "sensitive": ["a"]}
    return make_run(spec={**SPEC, "train": train, "data": data}, lightning=lightning)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """In place of the child, which answers with a measured step."""
    made = Mock(return_value=ModuleSizes(parameters=1, steps=[StepMemory(rows=2, peak=1, step=1, update=1)]))
    monkeypatch.setattr(module, "run_child", made)
    monkeypatch.setattr(Run, "project", lambda run: Path("p"))
    return made


@pytest.mark.parametrize(
    ("rows", "asked"), [([32], [32, 64]), ([8, 32, 8], [8, 32]), ([1], [2, 4]), ([10**6, 4], [4, MOST_ROWS])]
)
def test_rows_of_the_steps(rows: list[int], asked: list[int], child: Mock) -> None:
    assert measure(run(), DATASET, rows) == (child.return_value, "")
    (_, request), limits = child.call_args
    assert (request.rows, request.columns, request.steps) == (asked, {"x": "int64"}, 100 // 8)
    assert (limits["limit"], limits["withhold"]) == (MOST_S, True)


@pytest.mark.parametrize(("accelerator", "accelerated"), [("cpu", False), ("gpu", True), (None, True)])
def test_a_step_as_on_its_device(accelerator: str | None, accelerated: bool, child: Mock) -> None:
    measure(run(trainer={"accelerator": accelerator}), DATASET, [2])
    assert child.call_args.args[1].accelerated is accelerated


WHY: dict[str, tuple[Any, Any, dict[str, Any], bool, str]] = {
    "no dataset": (ModuleSizes(), None, {}, True, "no dataset of this pipeline is made yet (`trainwright shard SPEC` "),
    "their data": (ModuleSizes(), DATASET, {"data": {}}, True, "the config brings its own data module"),
    "not measured": (ModuleSizes(unprobed="it has no loss"), DATASET, {}, True, "it has no loss"),
    "not built": (ModuleSizes(unknown="it reads weights"), DATASET, {}, False, "it reads weights"),
    "hung": (Hung("The child hung."), DATASET, {}, False, "The child hung."),
    "raised": (UserCodeError("It raised."), DATASET, {}, False, "It raised."),
}


@pytest.mark.parametrize(("gives", "dataset", "lightning", "has_sizes", "why"), WHY.values(), ids=WHY)
def test_what_is_unknown_says_why(
    gives: Any, dataset: Any, lightning: dict[str, Any], has_sizes: bool, why: str, child: Mock
) -> None:
    child.side_effect = [gives]
    sizes, said = measure(run(**lightning), dataset, [2])
    assert ((sizes is not None), said.startswith(why)) == (has_sizes, True)
    if dataset is None or lightning:
        assert child.call_args.args[1].rows == []
