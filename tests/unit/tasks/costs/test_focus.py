"""Rows of FOCUS: the columns that 1.2 demands, in values that its rules allow."""

from __future__ import annotations

import json
import re
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from tasks.costs.charges import charges, shared
from tasks.costs.focus import columns, left_out_s, rows
from tests.unit.tasks.costs.test_charges import BEGAN, GPU, HERE, execution, gang, node

# Columns that the specification calls mandatory; those that may be null besides.
MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart",
    "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit",
    "ProviderName", "PublisherName", "ServiceCategory", "ServiceName",
}  # fmt: skip
# For a usage charge that is not a correction.
MAY_BE_NULL = {"ChargeClass", "InvoiceId", "RegionId", "RegionName"} | {"SkuPriceDetails", "x_Cause"}


def found(**changes: Any) -> list[Any]:
    one = execution(gangs=[gang(0, node(0, 10, 12, 20, 60, 63.25), met=BEGAN + 15)], **changes)
    return [(one, charge) for charge in charges(one)]


def test_the_columns() -> None:
    names = columns()
    assert set(names) >= MANDATORY
    own = [name for name in names if name.startswith("x_")]
    assert names[-len(own) :] == own, "those of FOCUS come first"
    assert all(re.fullmatch(r"(x_)?([A-Z][a-z]+)+", name) and len(name) <= 50 for name in names)
    assert len(set(names)) == len(names)


def check_row(row: dict[str, Any]) -> None:
    """The rules of the specification that a row of usage by itself must meet."""
    assert list(row) == columns()
    assert {name for name, value in row.items() if value is None} <= MAY_BE_NULL
    assert not any(value == "" or value != value.strip() for value in row.values() if value is not None)
    assert (row["RegionId"] is None) == (row["RegionName"] is None)
    for name in ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row[name] or "")
    assert row["ChargePeriodStart"] < row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]
    assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["BillingPeriodEnd"]
    for name in (name for name in row if name.endswith(("Cost", "Quantity", "UnitPrice"))):
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)?", row[name]), f"{name}: {row[name]}"
    product = Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"])
    assert {Decimal(row[name]) for name in ("ListCost", "BilledCost", "EffectiveCost")} == {product}
    assert Decimal(row["ContractedUnitPrice"]) * Decimal(row["PricingQuantity"]) == Decimal(row["ContractedCost"])
    assert re.fullmatch("[A-Z]{3}", row["BillingCurrency"])
    assert (row["PricingUnit"], row["ConsumedUnit"]) == ("Hours", "Hours")
    assert (row["ServiceCategory"], row["ServiceSubcategory"]) == ("AI and Machine Learning", "Machine Learning")
    assert (json.loads(row["Tags"]), row["x_Estimate"]) == ({"team": "a"}, "true")
    assert row["PricingCategory"] in ("Standard", "Dynamic")
    assert (row["ChargeCategory"], row["ChargeFrequency"], row["ChargeClass"]) == ("Usage", "Usage-Based", None)


def check_prices(made: list[dict[str, Any]]) -> None:
    """The rules about rows beside each other: a price has one SKU, a SKU one meter, a service one category."""
    for whole, part in (
        ("SkuPriceId", "SkuId"), ("SkuId", "SkuMeter"), ("SkuId", "PricingUnit"),
        ("ServiceName", "ServiceCategory"), ("ServiceName", "ServiceSubcategory"),
    ):  # fmt: skip
        assert len({(row[whole], row[part]) for row in made}) == len({row[whole] for row in made}), (whole, part)


def test_each_row_is_what_the_rules_allow() -> None:
    made = rows(found(), set())
    assert made
    for row in made:
        check_row(row)
    check_prices(made)


def test_the_rows_add_up_to_the_charges() -> None:
    amount = sum(charge.amount for _, charge in found())
    assert float(sum(Decimal(row["BilledCost"]) for row in rows(found(), set()))) == pytest.approx(amount)


def test_a_charge_over_midnight_is_in_two_billing_periods() -> None:
    began = datetime.fromisoformat("2026-01-31T23:59:30+00:00").timestamp()
    one = execution(began=began, ended=began + 60)
    made = rows([(one, charge) for charge in charges(one)], {"r1"})
    assert [(row["BillingPeriodStart"], row["ChargePeriodStart"], row["ChargePeriodEnd"]) for row in made] == [
        ("2026-01-01T00:00:00Z", "2026-01-31T23:59:30Z", "2026-02-01T00:00:00Z"),
        ("2026-02-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-02-01T00:00:30Z"),
    ]
    assert {row["x_SoFar"] for row in made} == {"true"}


def test_an_unknown_price_has_no_row_and_its_time_is_told() -> None:
    some = found(prices={"train": GPU.model_copy(update={"per_hour": None, "machine": ""}), "here": HERE})
    assert ({row["x_Stage"] for row in rows(some, set())}, left_out_s(some)) == ({"run"}, pytest.approx(53.25))


def test_a_share_of_a_machine_is_a_row_of_its_run() -> None:
    runs = [execution(run_id=name, machine="a" * 16, ended=BEGAN + 90) for name in ("r1", "r2", "r3")]
    made = rows(shared([(one, charge) for one in runs for charge in charges(one)]), set())
    for row in made:
        check_row(row)
    check_prices(made)
    assert {Decimal(row["ConsumedQuantity"]) for row in made} == {(Decimal(30) / 3600).quantize(Decimal("1e-12"))}
    assert [row["ResourceId"] for row in made] == ["r1/run", "r2/run", "r3/run"]
