"""Modules are traced for any number of rows, and what cannot be traced is named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from data_contracts.errors import UserCodeError
from data_contracts.messages.commands import TensorFacts
from tests.support import portables
from training.export.portable import Portable, Untraceable, outputs_of, traced

ROOT = Path(portables.__file__).parent
X = [TensorFacts(name=name, dtype="float64", shape=["rows"], column="float64") for name in ("a", "b", "c")]
LABEL = TensorFacts(name="label", dtype="int64", shape=["rows"], column="int64")


def stacked(inputs: Any) -> Any:
    return torch.stack([inputs[name].float() for name in "abc"], 1), inputs["label"]


def portable(module: L.LightningModule, batch: Any = stacked, transform: Any = None) -> Portable:
    precision = L.pytorch.plugins.Precision()
    return Portable(module.eval(), batch, transform, precision, ["label"]).eval()


def rows_of(facts: list[TensorFacts], rows: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows)
    return {
        one.name: torch.randint(0, 9, [rows, *map(int, one.shape[1:])], generator=draw).to(getattr(torch, one.dtype))
        for one in facts
    }


@pytest.mark.parametrize(
    ("module", "outputs", "left_out"),
    [
        (portables.Plain, {"prediction": ["rows", 2]}, []),
        (
            portables.Classes,
            {"output_label": ["rows"], "probabilities": ["rows", 2]},
            ["note (str)", "nothing (NoneType)"],
        ),
        (
            portables.Tuples,
            {"output_0": ["rows", 2], "output_1_mean": ["rows"], "output_1_spread": ["rows"]},
            [],
        ),
        (portables.Hooked, {"prediction": ["rows", 2]}, []),
    ],
)
def test_a_module_is_traced_for_any_number_of_rows(module: Any, outputs: dict[str, Any], left_out: list[str]) -> None:
    torch.manual_seed(1)
    one = portable(module())
    program, facts = traced(one, [*X, LABEL], ROOT)
    # A label is an input only if an output depends on it.
    assert [fact.name for fact in facts] == ["a", "b", "c"]
    names = one.course.names
    assert {fact.name: fact.shape for fact in outputs_of(program, names)} == (
        {name.replace("output_label", "label"): shape for name, shape in outputs.items()}
    )
    assert one.course.left_out == left_out
    for rows in (1, 2, 11):
        inputs = rows_of(facts, rows)
        with torch.no_grad():
            expected = one(inputs)
        made = program.module()(inputs)
        for name in names:
            torch.testing.assert_close(made[name], expected[name])


def test_an_output_is_called_otherwise_if_an_input_has_its_name() -> None:
    class Echo(portables.Base):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return {"label": batch[1] * 2}

    one = portable(Echo())
    _, facts = traced(one, [*X, LABEL], ROOT)
    assert [fact.name for fact in facts] == ["label"]
    assert one.course.names == ["output_label"]


def test_whole_numbers_and_dictionaries() -> None:
    facts = [
        TensorFacts(name="words", dtype="uint8", shape=["rows", 5]),
        TensorFacts(name="weights", dtype="float32", shape=["rows", 5]),
    ]
    one = portable(portables.Words(), dict)
    program, used = traced(one, facts, ROOT)
    assert used == facts
    inputs = rows_of(facts, 4)
    torch.testing.assert_close(program.module()(inputs)["prediction"], one(inputs)["prediction"])


@pytest.mark.parametrize(
    ("module", "code", "why"),
    [
        (portables.Branch, "if logits.sum() > 0:", "values of the rows"),
        (portables.Counting, "", "number of rows a constant"),
        (portables.Foreign, "return torch.from_numpy(", "numpy"),
    ],
)
def test_what_cannot_be_traced_is_named_with_its_line(module: Any, code: str, why: str) -> None:
    with pytest.raises(Untraceable) as raised:
        traced(portable(module()), [*X, LABEL], ROOT)
    lines = (ROOT / "portables.py").read_text().splitlines()
    line = next(at for at, text in enumerate(lines, 1) if code in text)
    place = f" in portables.py:{line}" if code else ""
    assert raised.value.message.startswith(f"torch.export cannot trace the module{place}: ")
    assert why in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.exit_code == 8


def test_an_error_of_the_module_is_its_own() -> None:
    with pytest.raises(UserCodeError, match="raised ValueError: no such thing") as raised:
        traced(portable(portables.Raising()), [*X, LABEL], ROOT)
    assert not isinstance(raised.value, Untraceable)
    assert "portables.py" in raised.value.user_traceback


def test_a_module_without_a_tensor_has_nothing_to_export() -> None:
    with pytest.raises(UserCodeError, match="returns a dict without a tensor"):
        traced(portable(portables.Empty()), [*X, LABEL], ROOT)


def test_a_transform_is_part_of_the_graph() -> None:
    one = portable(portables.Plain(), transform=lambda batch: (batch[0] * 3, batch[1]))
    program, facts = traced(one, [*X, LABEL], ROOT)
    inputs = rows_of(facts, 3)
    plain = portable(one.module)
    tripled = {name: value * 3 for name, value in inputs.items()} | {"label": torch.zeros(3, dtype=torch.int64)}
    torch.testing.assert_close(program.module()(inputs)["prediction"], plain(tripled)["prediction"])
