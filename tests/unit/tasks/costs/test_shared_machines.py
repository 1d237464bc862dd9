"""Runs that were on one machine at once pay for it once, together."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from data_contracts.costs import NOTHING, Resources
from data_contracts.executions import StageUsage
from data_contracts.resolved import Price
from tasks.costs.charges import Charged, charges, shared
from tests.unit.tasks.costs.test_charges import BEGAN, HERE, execution, gang, node

ONE, OTHER = "a" * 16, "b" * 16


def on(machine: str, run: str, began: float, ended: float, **changes: Any) -> list[Charged]:
    one = execution(run_id=run, began=BEGAN + began, ended=BEGAN + ended, machine=machine, **changes)
    return [(one, charge) for charge in charges(one)]


def seconds(found: list[Charged]) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    for _, charge in found:
        spent[charge.run_id] += charge.node_seconds
    return {run: round(used, 6) for run, used in spent.items()}


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 100), (0, 100)], [50, 50]),
        ([(0, 100), (50, 150)], [75, 75]),
        ([(0, 100), (20, 30)], [95, 5]),
        ([(0, 100), (100, 200)], [100, 100]),
        ([(0, 90), (0, 90), (0, 90)], [30, 30, 30]),
        ([(0, 100), (10, 30), (20, 40)], [250 / 3, 25 / 3, 25 / 3]),
        ([(0, 100), (50, 50)], [100, 0]),
    ],
)
def test_runs_share_the_time_in_which_they_were_there_together(
    spans: list[tuple[float, float]], expected: list[float]
) -> None:
    divided = seconds(shared([each for number, span in enumerate(spans) for each in on(ONE, f"r{number}", *span)]))
    assert [divided.get(f"r{number}", 0) for number in range(len(spans))] == pytest.approx(expected)


def test_other_machines_and_machines_without_a_name_are_not_shared() -> None:
    found = [*on(ONE, "r1", 0, 100), *on(OTHER, "r2", 0, 100), *on("", "r3", 0, 100), *on("", "r4", 0, 100)]
    assert shared(found) == found
    assert seconds(shared(on(ONE, "r1", 0, 100) + on(ONE, "r1", 50, 150))) == {"r1": 200.0}, "two executions of a run"


def test_local_nodes_are_on_the_machine_of_their_run_and_nodes_of_a_pool_are_not() -> None:
    two = [node(number, 10, 12, 20, 60, 70) for number in (0, 1)]
    trained = gang(0, *two, met=BEGAN + 15, local=True)
    alone = on(ONE, "r1", 0, 100, gangs=[trained], prices={"train": HERE, "here": HERE})
    assert seconds(alone) == {"r1": 40 + 2 * 60}
    divided = shared(alone + on(ONE, "r2", 0, 100))
    assert seconds(divided) == {"r1": (40 + 2 * 60) / 2, "r2": 50.0}
    assert {charge.share for _, charge in divided} == {0.5}
    divided = shared(on(ONE, "r1", 0, 100, gangs=[gang(0, *two, met=BEGAN + 15)]) + on(ONE, "r2", 0, 100))
    assert {charge.share for _, charge in divided if charge.node is not None} == {1}
    assert sum(charge.node_seconds for _, charge in divided if charge.node is None) == pytest.approx(100)


def test_money_is_shared_and_what_was_used_beside_time_is_whole() -> None:
    used = Resources(put_requests=7, read_bytes=1001, millijoules=9)
    stage = StageUsage(name="shard", began=BEGAN, ended=BEGAN + 100, status="ran", used=used)
    divided = shared(on(ONE, "r1", 0, 100, stages=[stage], used=used) + on(ONE, "r2", 30, 60))
    mine = [charge for _, charge in divided if charge.run_id == "r1"]
    assert sum((charge.used for charge in mine), NOTHING) == used
    assert sum(charge.amount or 0.0 for _, charge in divided) == pytest.approx(100 / 3600 * 3.6)


def test_a_machine_costs_its_wall_clock_however_runs_come_and_go() -> None:
    draw = random.Random(20261126)
    for _ in range(300):
        spans = [sorted(draw.randrange(1000) / 10 for _ in range(2)) for _ in range(draw.randint(2, 12))]
        found = [each for number, span in enumerate(spans) for each in on(ONE, f"r{number}", *span)]
        covered = {tenth for began, ended in spans for tenth in range(round(began * 10), round(ended * 10))}
        assert sum(seconds(shared(found)).values()) == pytest.approx(len(covered) / 10, abs=1e-4)


def test_a_charge_that_is_shared_in_part_stays_one_but_for_midnight() -> None:
    divided = shared(on(ONE, "r1", 0, 100) + on(ONE, "r2", 10, 20) + on(ONE, "r3", 15, 40))
    mine = [charge for _, charge in divided if charge.run_id == "r1"]
    assert [charge.share for charge in mine] == pytest.approx([(10 + 5 / 2 + 5 / 3 + 20 / 2 + 60) / 100])
    midnight = 86_400 - BEGAN % 86_400
    divided = shared(on(ONE, "r1", 0, midnight + 10) + on(ONE, "r2", midnight, midnight + 10))
    assert [charge.share for _, charge in divided] == pytest.approx([1.0, 0.5, 0.5])


def test_who_was_alone_pays_exactly_the_whole_also_after_others_shared() -> None:
    crowd = [each for number in range(7) for each in on(ONE, f"r{number}", number / 7, 10 + number / 11)]
    later = [
        each for number in range(200) for each in on(ONE, f"alone-{number}", 20 + number / 3, 20 + (number + 1) / 3)
    ]
    assert [charge.share for _, charge in shared(crowd + later) if charge.run_id.startswith("alone")] == [1.0] * 200


def test_another_price_takes_no_share() -> None:
    free = {"prices": {"here": Price(machine="here", per_hour=0.0, price_date="2026-01-01")}}
    found = on(ONE, "r1", 0, 100) + [
        each for number in range(9) for each in on(ONE, f"planted-{number}", 0, 100, **free)
    ]
    divided = shared(found)
    assert sum(charge.amount or 0.0 for _, charge in divided) == pytest.approx(100 / 3600 * 3.6)
    assert seconds(divided)["r1"] == 100


def test_many_runs_at_once_are_as_many_charges() -> None:
    found = [each for number in range(3000) for each in on(ONE, f"r{number}", number, number + 3000)]
    divided = shared(found)
    assert len(divided) <= len(found) + 3000, "but for midnight"
    assert sum(seconds(divided).values()) == pytest.approx(2999 + 3000, rel=1e-6)
