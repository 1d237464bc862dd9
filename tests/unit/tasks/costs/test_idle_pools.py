"""What machines cost that a pool keeps running and that no run uses."""

from __future__ import annotations

import pytest

from data_contracts.costs import MonthCosts, MonthLine
from data_contracts.resolved import Price
from tasks.costs.charges import MICRO, Charge
from tasks.costs.months import idle_in_month, idle_pool

GPU = Price(machine="gpu", per_hour=36.0, price_date="2026-11-01", pool="gpu")


def charge(began: float, ended: float, pool: str = "gpu") -> Charge:
    price = GPU.model_copy(update={"pool": pool})
    return Charge("r", "e", "train", "work", round(began * MICRO), round(ended * MICRO), price)


@pytest.mark.parametrize(
    ("used", "idle_s"),
    [
        ([], 200.0),
        ([charge(10, 60)], 150.0),
        ([charge(10, 60), charge(10, 60)], 100.0),
        ([charge(10, 60), charge(10, 60), charge(10, 60)], 100.0),  # the third was started for its run
        ([charge(10, 60), charge(60, 90)], 120.0),
        ([charge(-50, 300)], 100.0),  # beyond the span on both sides
        ([charge(10, 60, pool="other"), charge(10, 60, pool="")], 200.0),
        ([charge(-50, -10)], 200.0),
    ],
)
def test_node_seconds_that_no_run_used(used: list[Charge], idle_s: float) -> None:
    found = idle_pool("gpu", 2, GPU, used, (0.0, 100.0))
    assert (found.idle_s, found.kept_s) == (idle_s, 200.0)
    assert found.amount == pytest.approx(idle_s / 100)


def test_a_sentence_and_a_price_that_is_unknown() -> None:
    found = idle_pool("gpu", 2, GPU, [], (0.0, 3600.0))
    assert found.line == "pool gpu keeps 2 nodes: no run used 2.00 node-hours of them (100%), 72.0000 USD"
    unknown = idle_pool("gpu", 1, GPU.model_copy(update={"per_hour": None}), [], (0.0, 3600.0))
    assert unknown.line.endswith("(100%), an unknown cost")
    assert unknown.to_json() == {
        "pool": "gpu", "kept": 1, "kept_s": 3600.0, "idle_s": 3600.0, "amount": None, "currency": "USD",
    }  # fmt: skip


def test_a_months_lines_tell_what_was_idle_at_least() -> None:
    line = MonthLine(
        run_id="r", pipeline="p", model="p", tags={}, stage="train", cause="work", machine="gpu", pool="gpu",
        node_seconds=3600, gpu_seconds=0,
    )  # fmt: skip
    month = MonthCosts(month="2026-10", made="", lines=[line, line.model_copy(update={"pool": ""})], has_pools=True)
    found = idle_in_month("gpu", 2, GPU, [month, month.model_copy(update={"lines": []})], 3600.0)
    assert found is not None
    assert found.line == "pool gpu keeps 2 nodes: no run used at least 1.00 node-hours of them (50%), 36.0000 USD"
    busy = idle_in_month("gpu", 2, GPU, [month] * 9, 3600.0)
    assert busy is not None
    assert busy.idle_s == 0
    assert idle_in_month("gpu", 2, GPU, [month.model_copy(update={"has_pools": False})], 3600.0) is None
