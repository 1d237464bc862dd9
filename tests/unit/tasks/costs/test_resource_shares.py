"""Quantities go to the time in which they were used; `test_charges.py` adds generated histories up."""

from __future__ import annotations

from typing import Any

from data_contracts.costs import Resources
from data_contracts.executions import StageUsage
from tasks.costs.charges import charges
from tests.unit.tasks.costs.test_charges import BEGAN, execution, gang, node


def by_stage(**changes: Any) -> dict[tuple[str, int | None], int]:
    found: dict[tuple[str, int | None], int] = {}
    for one in charges(execution(**changes)):
        place = one.stage, one.node
        found[place] = found.get(place, 0) + one.used.read_bytes
    return {place: count for place, count in found.items() if count}


def stage(name: str, began: float, ended: float, read_bytes: int) -> StageUsage:
    used = Resources(read_bytes=read_bytes)
    return StageUsage(name=name, began=BEGAN + began, ended=BEGAN + ended, status="ran", used=used)


def test_a_stage_pays_for_what_it_used_and_the_run_for_the_rest() -> None:
    stages = [stage("validate", 0, 10, 5), stage("shard", 10, 20, 7)]
    assert by_stage(stages=stages, used=Resources(read_bytes=15)) == {
        ("validate", None): 5, ("shard", None): 7, ("run", None): 3,
    }  # fmt: skip


def test_a_stage_whose_nodes_are_processes_of_the_machine_pays_through_them() -> None:
    local = gang(0, node(0, 10, 10, 10, 20, 20), met=BEGAN + 10, local=True)
    stages = [stage("train", 10, 20, 9)]
    assert by_stage(stages=stages, gangs=[local], used=Resources(read_bytes=9)) == {("train", 0): 9}


def test_a_node_pays_until_its_release_and_a_process_without_time_still_pays() -> None:
    first = gang(0, node(0, 0, 0, 0, 10, 10, used=Resources(read_bytes=4)), met=BEGAN, ended="hung")
    again = gang(1, node(0, 30, 30, 30, 40, 40), met=BEGAN + 30)
    idle = [one for one in charges(execution(gangs=[first, again])) if one.cause == "idle"]
    assert [one.used.read_bytes for one in idle] == [0]
    assert by_stage(gangs=[first, again]) == {("train", 0): 4}
    assert by_stage(ended=BEGAN, used=Resources(read_bytes=3)) == {("run", None): 3}
