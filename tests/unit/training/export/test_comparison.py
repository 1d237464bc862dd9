"""Outputs are compared batch by batch, and the worst difference is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data_contracts.errors import GateNotMet, UserCodeError
from data_contracts.messages.commands import TensorFacts, Tolerance
from tests.support import portables
from tests.unit.training.export.test_tracing import LABEL, ROOT, X, portable, rows_of
from training.export import fresh_run
from training.export.portable import traced
from training.export.worker import TOLERANCES, compare, run_fresh, write_torch

FLOAT = TensorFacts(name="score", dtype="float32", shape=["rows"])
WHOLE = TensorFacts(name="label", dtype="int64", shape=["rows"])


def test_a_file_runs_in_a_process_that_cannot_import_trainwright(tmp_path: Path) -> None:
    one = portable(portables.Classes())
    program, facts = traced(one, [*X, LABEL], ROOT)
    write_torch(program, tmp_path)
    inputs, names = rows_of(facts, 9), one.course.names
    made = run_fresh(tmp_path / "model.pt2", "torch", inputs, names, [(0, 9), (8, 9)])
    with torch.no_grad():
        expected = [
            list(one({name: value[at] for name, value in inputs.items()}).values()) for at in (slice(9), slice(8, 9))
        ]
    assert [[part.shape for part in batch] for batch in made] == [[(9,), (9, 2)], [(1,), (1, 2)]]
    outputs = [WHOLE, TensorFacts(name="probabilities", dtype="float32", shape=["rows", 2])]
    agreements = compare("model.pt2", expected, made, outputs, None)
    assert [agreement.largest <= 1e-6 for agreement in agreements] == [True, True]
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(UserCodeError, match="model.onnx does not run on rows of the data"):
        run_fresh(tmp_path / "model.onnx", "onnx", inputs, names, [(0, 9)])


def test_the_fresh_process_ends_where_trainwright_can_be_imported() -> None:
    code = "import training.export.fresh_run as fresh; fresh.refuse_ours()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Trainwright can be imported here: data_contracts, infra, training" in done.stderr
    assert fresh_run.OURS == ("data_contracts", "infra", "training", "tasks", "flows")


def test_a_difference_within_the_tolerance_is_measured() -> None:
    expected = [[torch.tensor([1.0, 100.0]), torch.tensor([1, 2])], [torch.tensor([1.0]), torch.tensor([1])]]
    found = [[np.float32([1.0, 100.009]), np.array([1, 2])], [np.float32([1.00001]), np.array([1])]]
    score, label = compare("model.onnx", expected, found, [FLOAT, WHOLE], None)
    assert (score.output, score.tolerance) == ("score", TOLERANCES["float32"])
    assert score.largest == pytest.approx(0.009, rel=0.01)
    assert (label.largest, label.tolerance.atol, label.tolerance.rtol) == (0, 0, 0)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([1.0], [1.001]),
        ([1.0], [float("nan")]),
        ([float("inf")], [1.0]),
        ([float("inf")], [float("-inf")]),
        ([float("nan")], [0.0]),
        ([0.0], [1.1e-5]),
    ],
)
def test_a_larger_difference_is_refused(expected: list[float], found: list[float]) -> None:
    with pytest.raises(GateNotMet, match="The output score of model.onnx differs from the checkpoint's by up to") as no:
        compare("model.onnx", [[torch.tensor(expected)]], [[np.float32(found)]], [FLOAT], None)
    assert no.value.exit_code == 4
    assert no.value.details["output"] == "score"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0])
def test_values_that_are_equal_agree_whatever_they_are(value: float) -> None:
    (one,) = compare("f", [[torch.tensor([value])]], [[np.float32([value])]], [FLOAT], None)
    assert one.largest == 0


def test_a_tolerance_of_ones_own_is_for_floats_alone() -> None:
    wide = Tolerance(atol=1, rtol=0)
    (one,) = compare("f", [[torch.tensor([1.0])]], [[np.float32([1.9])]], [FLOAT], wide)
    assert one.tolerance == wide
    with pytest.raises(GateNotMet, match="The output label of f differs"):
        compare("f", [[torch.tensor([1])]], [[np.array([2])]], [WHOLE], wide)


def test_another_shape_is_refused() -> None:
    with pytest.raises(GateNotMet, match=r"has the shape \[1\] in the exported file, but \[2\]"):
        compare("f", [[torch.tensor([1.0, 2.0])]], [[np.float32([1.0])]], [FLOAT], None)
