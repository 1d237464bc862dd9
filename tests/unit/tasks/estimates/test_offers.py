"""Which machines of the book a training fits on, what it costs there, and whether to distribute at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from data_contracts.price_book import MachinePrice
from infra.prices import Machine
from tasks.estimates.offers import (
    MOST_OFFERS,
    USABLE,
    MemoryNeed,
    Offer,
    offers,
    shortlist,
    time_by_speeds,
    verdict,
)

DAY = "2026-11-25"


def price(per_hour: float, **changes: Any) -> MachinePrice:
    return MachinePrice(**{"date": "2026-01-01", "currency": "USD", "per_hour": per_hour, **changes})


def machine(name: str, devices: int, memory_bytes: int, *prices: MachinePrice) -> Machine:
    return Machine(name=name, devices=devices, memory_bytes=memory_bytes, prices=prices)


SMALL = machine("small", 1, 100, price(1.0))
LARGE = machine("large", 4, 1000, price(8.0), price(3.0, term="spot"))


def made(
    *machines: Machine,
    bytes: int = 50,
    time_s: Callable[[str, int], float | None] = lambda machine, ranks: 36_000 / ranks if machine == "large" else None,
) -> list[Offer]:
    return offers(
        machines,
        DAY,
        lambda devices: [(1, 1), (1, devices), (2, devices)],
        lambda nodes, devices: [MemoryNeed("single" if nodes * devices == 1 else "ddp", nodes, devices, 8, bytes)],
        time_s,
    )


def test_the_cheapest_come_first_and_unknown_costs_last() -> None:
    found = [(one.machine, one.term, one.nodes, one.devices, one.amount) for one in made(SMALL, LARGE)]
    assert found[:3] == [
        ("large", "spot", 1, 4, 7.5),
        ("large", "spot", 2, 4, 7.5),
        ("large", "on-demand", 1, 4, 20.0),
    ]
    assert found[-1] == ("small", "on-demand", 2, 1, None)


@pytest.mark.parametrize(
    ("one", "bytes"),
    [
        (machine("m", 0, 100, price(1.0)), 50),  # a CPU
        (machine("m", 1, 0, price(1.0)), 50),  # unknown memory
        (machine("m", 1, 100), 50),  # unknown price
        (machine("m", 1, 100, price(1.0, date="2026-12-01")), 50),  # a price of later
        (machine("m", 1, 100, price(1.0)), round(100 * USABLE) + 1),  # too little memory
    ],
)
def test_what_is_not_offered(one: Machine, bytes: int) -> None:
    assert made(one, bytes=bytes) == []


def test_each_region_has_its_own_price_and_the_cheapest_is_named() -> None:
    regions = machine(
        "m", 1, 100, price(2.0, region="us"), price(1.0, region="eu"), price(0.5, region="eu", date="2026-12-01")
    )
    found = made(regions, time_s=lambda *_: 3600.0)
    assert [(one.region, one.amount) for one in found if one.nodes == 1][::2] == [("eu", 1.0), ("us", 2.0)]
    assert verdict(found).startswith("The cheapest is 1 × m (eu) with single: 1.00 USD in 1 h.")
    beside = machine("m", 1, 100, price(2.0), price(9.0, region="eu", date="2026-12-01"))
    assert {(one.region, one.per_hour / one.nodes) for one in made(beside)} == {("", 2.0)}


def test_the_table_is_short_and_shows_what_nothing_beats() -> None:
    # One device costs four times as much and takes four times as long, and is shown all the same; so is the cheapest
    # that nobody takes away.
    assert [(one.machine, one.term, one.nodes * one.devices) for one in shortlist(made(SMALL, LARGE))] == [
        ("large", "spot", 4),
        ("large", "spot", 8),
        ("large", "on-demand", 4),
        ("large", "spot", 1),
        ("small", "on-demand", 1),
    ]
    many = [machine(f"m{number:02}", 1, 100, price(1.0 + number)) for number in range(20)]
    assert len(shortlist(made(*many))) == MOST_OFFERS


def test_the_cheapest_on_demand_has_a_place_beside_many_spot_nodes() -> None:
    spot = [machine(f"m{n}", 1, 1000, price(1.2**n, term="spot")) for n in range(9)]
    dear = [machine("dear", 1, 1000, price(50.0)), machine("dearer", 1, 1000, price(60.0))]
    short = shortlist(
        made(*spot, *dear, time_s=lambda name, _: 3600 * 0.9 ** int(name[1:] if name[1:].isdigit() else 0))
    )
    assert (len(short), [one.machine for one in short if one.term == "on-demand"]) == (MOST_OFFERS, ["dear"])


def test_what_is_hardly_faster_is_not_shown() -> None:
    hardly = made(machine("m", 1, 1000, price(1.0)), time_s=lambda _, ranks: 3600 * (1 - 0.004 * ranks))
    assert [one.nodes * one.devices for one in shortlist(hardly)] == [1]
    assert verdict(hardly).startswith("The cheapest is 1 × m with single: 0.9960 USD in 59.8 min. Do not distribute")


def test_amounts_of_two_currencies_do_not_beat_each_other() -> None:
    euro = machine("large", 4, 1000, price(1.0, currency="EUR"))
    assert [one.currency for one in shortlist(made(LARGE, euro))] == ["EUR"] * 3 + ["USD"] * 4


def test_each_currency_has_its_part_of_the_table() -> None:
    many = [machine(f"{name}{n}", 1, 100, price(1.0 + n, currency=name)) for name in ("EUR", "USD") for n in range(9)]
    assert [one.currency for one in shortlist(made(*many))] == ["EUR"] * 4 + ["USD"] * 4


SENTENCES: dict[str, tuple[list[Offer], str]] = {
    "none": ([], "No machine whose memory and price the book knows can carry this training out."),
    "time unknown": (
        made(SMALL),
        "The cheapest that fits is 1 × small at 1 USD an hour; how long it takes there is unknown, because this "
        "pipeline never trained there. One device is enough: distributing can only save time.",
    ),
    "distributed": (
        made(LARGE),
        "The cheapest is 1 × large (spot) with ddp: 7.50 USD in 2.5 h. One device on large (spot) would take 10 h "
        "and cost 30.00 USD.",
    ),
    "two currencies": (
        made(
            machine("large", 1, 1000, price(8.0)),
            machine("far", 1, 1000, price(5.0, currency="EUR")),
            time_s=lambda name, ranks: 3600.0 if name == "large" else None,
        ),
        "In EUR: The cheapest that fits is 1 × far at 5 EUR an hour; how long it takes there is unknown, because this "
        "pipeline never trained there. One device is enough: distributing can only save time. In USD: The cheapest is "
        "1 × large with single: 8.00 USD in 1 h. Do not distribute: one device is the cheapest.",
    ),
    "free": (
        made(machine("large", 4, 1000, price(0.0))),
        "The cheapest is 1 × large with single: 0.0000 USD in 10 h. 2 × large costs the same and takes 1.25 h.",
    ),
    "one device": (
        made(machine("large", 1, 1000, price(8.0)), time_s=lambda name, ranks: 3600.0),
        "The cheapest is 1 × large with single: 8.00 USD in 1 h. Do not distribute: one device is the cheapest.",
    ),
}


@pytest.mark.parametrize(("found", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_one_sentence_names_the_cheapest(found: list[Offer], sentence: str) -> None:
    assert verdict(found) == sentence


@pytest.mark.parametrize(
    ("machine", "speeds", "time_s"),
    [
        ("a", {}, 100),
        ("b", {}, None),
        ("b", {"a": 1.0}, None),
        ("b", {"b": 2.0}, None),
        ("b", {"a": 1.0, "b": 2.0}, 50),
    ],
)
def test_a_time_elsewhere_needs_both_speeds(machine: str, speeds: dict[str, float], time_s: float | None) -> None:
    assert time_by_speeds({"a": 100.0}, speeds, machine) == time_s
