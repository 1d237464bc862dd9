"""How much of a budget an execution used: by the charges that a bill has, cut at the months."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from data_contracts.errors import CorruptError
from data_contracts.executions import ExecutionUsage, GangUsage, NodeUsage
from data_contracts.resolved import Price
from data_contracts.rules import Budgets, Limit, Policy
from tasks.budgets import BudgetPeriod, budget_periods, month_bounds, months, per_second, price_fault, used
from tests.unit.tasks.costs.test_charges import execution as charged

GPU = Price(machine="gpu", per_hour=36.0, price_date="2026-01-01", devices=8)
HERE = Price(machine="cpu", per_hour=3.6, price_date="2026-01-01")
LIMITS = {
    "money": Limit(amount=5.0, currency="USD"),
    "other money": Limit(amount=5.0, currency="EUR"),
    "hours": Limit(hours=5.0),
    "GPU-hours": Limit(gpu_hours=5.0),
}


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def execution(began: float, seconds: float, nodes: int = 0) -> ExecutionUsage:
    """One on this machine, whose pool's nodes work all the time."""
    each = [NodeUsage(number=n, started=began, released=began + seconds) for n in range(nodes)]
    gang = GangUsage(stage="train", where="trainings/k-0", generation=0, local=False, nodes=each, ended="")
    return charged(
        began=began, ended=began + seconds, prices={"train": GPU, "here": HERE}, gangs=[gang] if nodes else []
    )


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("money", 2 * 36.0 + 3.6), ("other money", 0.0), ("hours", 3.0), ("GPU-hours", 16.0)],
)
def test_an_hour_of_two_nodes_and_this_machine(limit: str, expected: float) -> None:
    assert used(LIMITS[limit], execution(at("2026-11-25"), 3600, nodes=2)) == pytest.approx(expected)


def test_a_run_over_the_turn_of_the_year_uses_both_months() -> None:
    began = at("2025-12-31T23:00")
    assert months(began, began + 7200) == ["2025-12", "2026-01"]
    assert months(began, began + 3600) == ["2025-12"], "the next month begins after it"
    assert months(began, began - 86_400 * 60) == ["2025-12"], "a clock that was set back"
    found = [used(LIMITS["hours"], execution(began, 9000), month_bounds(one)) for one in ("2025-12", "2026-01")]
    assert found == [pytest.approx(1.0), pytest.approx(1.5)]


@pytest.mark.parametrize(
    ("limit", "expected"), [("money", 36.0), ("hours", 1.0), ("GPU-hours", 8.0)], ids=lambda one: str(one)
)
def test_what_a_node_uses_in_an_hour(limit: str, expected: float) -> None:
    assert per_second(LIMITS[limit], GPU) * 3600 == pytest.approx(expected)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, ["b 2026-11"]),
        ({"where": {"team": "sales"}}, ["b 2026-11"]),
        ({"where": {"team": "vision"}}, []),
        ({"where": {"team": "sales", "cost-centre": "7"}}, []),
        ({"pipeline": "p"}, ["b 2026-11"]),
        ({"pipeline": "q"}, []),
        ({"per": "run"}, ["b r"]),
    ],
)
def test_the_runs_of_a_budget(where: dict[str, Any], expected: list[str]) -> None:
    content = {"version": 1, "budgets": {"b": {"per": "month", "limit": {"hours": 1}, **where}}}
    span = (at("2026-11-25"), at("2026-11-26"))
    found = budget_periods(Budgets.model_validate(content), "p", {"team": "sales"}, "r", span)
    assert [f"{one.name} {one.period}" for one in found] == expected


def test_a_limit_that_is_raised_keeps_what_was_used_and_another_unit_does_not() -> None:
    def scope(**budget: Any) -> str:
        return Budgets.model_validate({"version": 1, "budgets": {"b": {"per": "month", **budget}}}).budgets["b"].scope

    assert scope(limit={"hours": 1}) == scope(limit={"hours": 2}, warn_at=[0.5], at_limit="warn")
    assert len({scope(limit={"hours": 1}), scope(limit={"gpu_hours": 1}), scope(limit={"hours": 1}, pipeline="p")}) == 3


@pytest.mark.parametrize(
    ("limit", "prices", "expected"),
    [
        ("money", [GPU, HERE], ""),
        ("hours", [Price(machine="", per_hour=None, price_date="")], ""),
        (
            "money",
            [GPU, Price(machine="", per_hour=None, price_date="", pool="gpu")],
            "The budget b is in USD, and a price is unknown: of the pool gpu, which the price book does not have.",
        ),
        ("other money", [GPU], "The budget b is in EUR, and the price of gpu is in USD."),
        ("GPU-hours", [GPU, HERE, Price(machine="local", per_hour=None, price_date="")], ""),
        (
            "GPU-hours",
            [Price(machine="", per_hour=None, price_date="", pool="gpu")],
            "The budget b is in GPU-hours, and nobody knows the GPUs of the pool gpu, which "
            "the price book does not have.",
        ),
    ],
)
def test_a_budget_needs_what_it_counts_of_each_machine(limit: str, prices: list[Price], expected: str) -> None:
    content = {"version": 1, "budgets": {"b": {"per": "month", "limit": LIMITS[limit].model_dump()}}}
    assert price_fault(BudgetPeriod("b", Budgets.model_validate(content).budgets["b"], "2026-11"), prices) == expected


@pytest.mark.parametrize("span", [(-6e10, 0.0), (0.0, 2e11), (-1.0, 1.0)])
def test_a_span_that_no_run_has_is_damage_and_makes_no_ledgers(span: tuple[float, float]) -> None:
    with pytest.raises(CorruptError, match="A record of use"):
        months(*span)


def test_an_empty_tag_is_not_any_value() -> None:
    policy = Policy(version=1, tags={"cost-centre": "any"})
    assert policy.fault({"cost-centre": "7"}) is None
    for empty in ("", " ", "\u200b", "\x00\t", "\u2060\u00ad", "\u3164", "\u2800", "\u034f"):
        assert policy.fault({"cost-centre": empty}) == ("cost-centre", "is empty, and the policy demands a value")
