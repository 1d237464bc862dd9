"""Expressions over metrics: arithmetic, and nothing else."""

from __future__ import annotations

import math

import pytest

from data_contracts.expressions import check, value_of

VALUES = {"accuracy": 0.9, "hard/accuracy": 0.8, "loss": 0.5, "f1-score": 0.7, "acc": 0.1}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("accuracy - hard/accuracy", 0.1),
        ("accuracy-loss", 0.4),
        ("accuracy/loss", 1.8),
        ("0.5 * (accuracy + f1-score)", 0.8),
        ("-loss + 2", 1.5),
        ("acc", 0.1),
        (" accuracy\n", 0.9),
    ],
)
def test_value(expression: str, value: float) -> None:
    assert value_of(expression, VALUES) == pytest.approx(value)


@pytest.mark.parametrize("expression", ["accuracy / 0", "accuracy / (loss - loss)", "1e308 * 10 - 1e308 * 10"])
def test_no_value_is_not_a_number(expression: str) -> None:
    assert math.isnan(value_of(expression, VALUES))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("accurac", r"accurac is not a metric that was scored \(did you mean accuracy\?\);"),
        ("accuracy / 0", "it divides by zero or is too large, whatever the metrics are"),
        ("1e999 * accuracy", "it divides by zero or is too large"),
        ("_0 + 1", "_0 is not a metric"),
        ("__metric_0 + 1", "__metric_ is not a metric"),
        ("hart/accuracy", r"hart is not a metric that was scored \(did you mean hard/accuracy\?\)"),
        ("zebra - 1", "zebra is not a metric that was scored;"),
        ("accuracy ** 9", r"only numbers, metrics, \+ - \* / and brackets"),
        ("accuracy if loss else 1", "only numbers"),
        ("accuracy.real", "only numbers"),
        ("print(accuracy)", "only numbers"),
        ("__import__('os').system('true')", "only numbers"),
        ("'a' * 9", "only numbers"),
        ("True", "only numbers"),
        ("(accuracy", "cannot be read"),
        ("", "cannot be read"),
        ("9" * 2_000, "more than 1,000 characters"),
        ("(-" * 300 + "loss" + ")" * 300, "nested too deeply|cannot be read"),
    ],
)
def test_anything_else_is_refused(expression: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(expression, VALUES)
