"""What promotions gained, and what each hundredth of it cost."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.records import GateResult
from tasks.costs import months
from tasks.costs.months import AliasMove, MetricGain, gained, gains_of


def move(at: float, version: int, *, back: bool = False, **gains: float) -> AliasMove:
    return AliasMove(at, version, gains, back)


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        pytest.param([], [], id="no moves"),
        pytest.param([move(1, 1)], [], id="a first version gains nothing"),
        pytest.param([move(1, 1), move(2, 2, accuracy=0.01)], [("accuracy", 0.01, 1)], id="one promotion"),
        pytest.param(
            [move(1, 1), move(2, 2, accuracy=0.01), move(3, 3, accuracy=0.02, loss=-0.5)],
            [("accuracy", 0.03, 2), ("loss", -0.5, 1)],
            id="two metrics",
        ),
        pytest.param(
            [move(1, 1), move(2, 2, accuracy=0.01), move(3, 3, accuracy=0.02), move(4, 2, back=True)],
            [("accuracy", 0.01, 1)],
            id="a rollback takes its gain back",
        ),
        pytest.param(
            [move(1, 1), move(2, 2, accuracy=0.01), move(3, 1, back=True), move(4, 3, accuracy=0.04)],
            [("accuracy", 0.04, 1)],
            id="a gain after a rollback",
        ),
        pytest.param([move(-5, 1), move(-1, 2, accuracy=0.5)], [], id="before the span"),
        pytest.param([move(1, 1), move(10, 2, accuracy=0.5)], [], id="the span's end is not in it"),
        pytest.param([move(0, 2, accuracy=0.5)], [("accuracy", 0.5, 1)], id="its start is"),
        pytest.param([move(1, 7, back=True)], [], id="a rollback to what the history does not have"),
    ],
)
def test_gains_of_a_history(moves: list[AliasMove], expected: list[tuple[str, float, int]]) -> None:
    found = gained("orders", "champion", moves, 0, 10)
    assert [(one.metric, pytest.approx(one.gained), one.promotions) for one in found] == expected


@pytest.mark.parametrize(
    ("gain", "amounts", "expected"),
    [
        (0.02, {"USD": 3.0}, {"USD": 1.5}),
        (0.02, {"USD": 3.0, "EUR": 1.0}, {"EUR": 0.5, "USD": 1.5}),
        (0.02, None, None),
        (0.02, {}, None),
        (0.0, {"USD": 3.0}, None),
        (-0.1, {"USD": 3.0}, None),
        (math.nan, {"USD": 3.0}, None),
    ],
)
def test_the_cost_of_a_hundredth(gain: float, amounts: Any, expected: Any) -> None:
    assert MetricGain("orders", "champion", "accuracy", gain, 1).per_point(amounts) == expected


def test_the_line_for_people() -> None:
    one = MetricGain("orders", "champion", "accuracy", 0.02, 2)
    assert one.line({"USD": 3.0}) == ("orders@champion: 2 promotions gained 0.02 in accuracy, 1.5000 USD for each 0.01")
    assert one.line(None).endswith("gained 0.02 in accuracy, at an unknown cost")


def gate(metric: str, value: float, champion: float | None, **more: Any) -> GateResult:
    return GateResult(metric=metric, met=True, value=value, bound=0, champion_value=champion, sentence="", **more)


@pytest.mark.parametrize("damage", ["", "no time", "no evaluation"])
def test_gains_are_read_from_receipts_in_the_better_direction(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = [
        gate("accuracy", 0.9, 0.8),
        gate("loss", 0.3, 0.5),
        gate("accuracy", 0.1, 0.9, slice="old"),
        gate("size", 5, None),
        gate("secret/accuracy", 0, 0.5, sealed=True),
    ]
    receipt = SimpleNamespace(
        decision="promoted", version=2, gates=gates, evaluation=object(), incident=None, model="orders",
        alias="champion", sentence="",
    )  # fmt: skip
    provenance = {} if damage == "no time" else {"finished": "2026-11-25T00:00:00+00:00"}
    monkeypatch.setattr(
        months.registry,
        "aliases",
        lambda store: [("orders", "champion", 2), ("orders", "canary", 3), ("x", "y", 1)],
    )
    monkeypatch.setattr(months.registry, "moves", lambda store, model, alias: [(receipt, provenance)])

    def read(store: Any, ref: Any, kind: Any) -> Any:
        if damage == "no evaluation":
            raise FileNotFoundError
        modes = {"accuracy": "max", "loss": "min"}
        return SimpleNamespace(metrics={name: SimpleNamespace(mode=mode) for name, mode in modes.items()})

    monkeypatch.setattr(months, "read_handoff", read)
    store: Any = object()
    found = list(gains_of([store], ["orders"], 0, 4e9))
    told = {one.metric: pytest.approx(one.gained) for one in found}
    assert told == ({} if damage else {"accuracy": 0.1, "loss": 0.2})
