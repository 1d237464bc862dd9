"""What a run's metrics say of its time and money: what is not committed yet is neither kept nor lost."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.executions import ExecutionUsage, GangUsage
from data_contracts.resolved import Price
from tasks.telemetry import run_samples
from tests.unit.tasks.costs.test_charges import BEGAN, HERE, execution, node
from tests.unit.tasks.costs.test_charges import gang as charged_gang


def gang(**changes: Any) -> GangUsage:
    """A node that started at 0, joined and met at 2, worked from 4 to 14 and is there until 14."""
    return charged_gang(0, node(0, 0, 2, 4, 14, 14), met=BEGAN + 2, **changes)


def of(execution: ExecutionUsage, live: GangUsage | None = None) -> dict[tuple[str, ...], Any]:
    return {(one.name, *one.labels): one.value for one in run_samples(execution, live)}


def test_a_generation_that_works_has_uncommitted_steps_and_no_lost_ones() -> None:
    found = of(execution(ended=BEGAN + 20), gang(ended="", kept_step=4))
    assert found["node_time_seconds", "train", "work"] == 4
    assert found["node_time_seconds", "train", "uncommitted"] == 6
    assert found["node_time_seconds", "train", "start"] == 4
    assert ("node_time_seconds", "train", "lost") not in found
    assert found["goodput_ratio",] == pytest.approx(4 / sum(v for k, v in found.items() if k[0] == "node_time_seconds"))
    assert found["cost_per_hour", "USD"] == 36.0 + 3.6


def test_a_generation_that_is_recorded_and_still_followed_counts_once() -> None:
    done = gang(ended="done", kept_step=10)
    assert of(execution(gangs=[done], ended=BEGAN + 20), done)["node_time_seconds", "train", "work"] == 10


def test_this_machine_is_not_charged_beside_its_own_nodes() -> None:
    assert of(execution(ended=BEGAN + 20), gang(local=True, ended=""))["cost_per_hour", "USD"] == 36.0


def test_what_has_no_price_is_counted_apart() -> None:
    unknown = Price(machine="gpu", per_hour=None, price_date="", pool="gpu")
    found = of(
        execution(gangs=[gang(ended="done", kept_step=10)], prices={"train": unknown, "here": HERE}, ended=BEGAN + 20)
    )
    assert found["unpriced_time_seconds",] == 14
    assert ("cost", "USD", "work") not in found


def test_a_run_that_has_just_begun_has_no_goodput() -> None:
    found = of(execution(ended=BEGAN))
    assert ("goodput_ratio",) not in found
    assert found["unpriced_time_seconds",] == 0
