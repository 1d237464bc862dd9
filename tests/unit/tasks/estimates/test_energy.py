"""Energy and carbon before a run: measured by earlier runs, else stated by the price book, else unknown."""

from __future__ import annotations

import pytest

from data_contracts.costs import Resources
from data_contracts.resolved import Price
from tasks.costs.charges import Charge
from tasks.estimates.earlier_runs import Energy, PastPower, Span, energy_of, powers

KWH = 3_600_000.0
BARE = Price(machine="gpu", per_hour=1.0, price_date="2026-01-01")
STATED = BARE.model_copy(update={"watts": 1000.0})
GRADED = STATED.model_copy(update={"g_per_kwh": 400.0})
HOURS = Span(3600, 1800, 7200)
PAST = [PastPower("train", "gpu", watts) for watts in (400, 500, 900)]


def charge(seconds: float, joules: float | None, *, estimable: bool = False, stage: str = "train") -> Charge:
    used = Resources(millijoules=None if joules is None else round(joules * 1000))
    return Charge("r", "e", stage, "work", 0, round(seconds * 1e6), BARE, 0, 0, used, estimable)


@pytest.mark.parametrize(
    ("charges", "found"),
    [
        ([charge(10, 4000)], [PastPower("train", "gpu", 400.0)]),
        ([charge(10, 4000), charge(10, 6000)], [PastPower("train", "gpu", 500.0)]),
        ([charge(10, 4000), charge(10, None)], [PastPower("train", "gpu", 200.0)]),  # the other measures for both
        ([charge(10, 4000), charge(10, None, estimable=True)], []),  # a node that nothing measured
        ([charge(10, None, estimable=True)], []),
        ([charge(0, 4000)], []),
    ],
)
def test_the_power_of_earlier_runs(charges: list[Charge], found: list[PastPower]) -> None:
    assert powers(charges) == found


def test_measured_power_comes_before_the_stated() -> None:
    found = energy_of("train", HOURS, [(GRADED, 2)], PAST)
    assert found.joules == Span(2 * 500 * 3600, 2 * 400 * 1800, 2 * 900 * 7200)
    assert found.grams.expected == pytest.approx(400)
    assert (found.measured, found.stated, found.unmetered, found.ungraded) == (True, False, frozenset(), frozenset())


def test_without_a_measurement_the_price_book_counts() -> None:
    found = energy_of("verify", HOURS, [(STATED, 1)], PAST)
    assert (found.joules.expected, found.measured, found.stated) == (KWH, False, True)
    assert found.ungraded == {"gpu"}
    assert found.to_json() == {
        "energy_joules": KWH, "energy_least_joules": KWH / 2, "energy_most_joules": 2 * KWH, "co2e_grams": None,
        "from": ["price book"], "unmetered_machines": [], "ungraded_machines": ["gpu"],
    }  # fmt: skip


def test_what_is_unknown_is_no_zero() -> None:
    unknown = energy_of("verify", HOURS, [(BARE, 1)], [])
    assert (unknown.is_known, unknown.to_json()["energy_joules"], unknown.unmetered) == (False, None, {"gpu"})
    part = (unknown + energy_of("verify", HOURS, [(GRADED, 1)], [])).to_json()
    assert (part["energy_joules"], part["known_joules"], part["co2e_grams"]) == (None, KWH, None)
    assert not Energy().is_known
