"""A record of use that cannot be of its run is not charged, and this is said."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.executions import NodeUsage
from infra.usage import CLOCKS_S, bounded, launched_once
from tests.unit.tasks.costs.test_charges import BEGAN, execution, gang, node

RUN = "20251124-160000-abcdef"  # began at BEGAN
NOW = BEGAN + 1000
DAY = 86_400.0


def seconds(one: Any) -> list[float]:
    return [node.released - node.started for gang in one.gangs for node in gang.nodes]


def test_an_honest_record_is_as_it_was() -> None:
    one = execution(run_id=RUN, gangs=[gang(0, node(0, 0, 1, 2, 90, 100), met=BEGAN + 1)])
    assert bounded([one], NOW) == ([one], [])
    skewed = gang(0, node(0, -600, 1, 2, 90, 700), met=BEGAN + 1)
    assert bounded([execution(run_id=RUN, gangs=[skewed])], NOW)[1] == [], "clocks of two machines differ"
    [kept], said = bounded([execution(run_id=RUN, ended=BEGAN + 400 * DAY)], NOW)
    assert (kept.ended, len(said)) == (NOW, 1), "an end in the future is now"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"began": BEGAN - DAY}, "begins before the run, and is left out"),
        ({"began": NOW + DAY, "ended": NOW + 2 * DAY}, "begins in the future, and is left out"),
    ],
)
def test_an_execution_at_an_impossible_time_is_left_out(changes: dict[str, float], sentence: str) -> None:
    kept, said = bounded([execution(run_id=RUN), execution(run_id=RUN, execution="e2", **changes)], NOW)
    assert [one.execution for one in kept] == ["e1"]
    assert said == [f"The record of use e2 of the run {RUN} {sentence}."]
    [other], _ = bounded([execution(run_id="r1", began=BEGAN - DAY)], NOW)
    assert other.began == BEGAN - DAY, "the id does not say when the run was started"


@pytest.mark.parametrize(
    ("moments", "at_most", "sentence"),
    [
        ((-DAY, 1, 2, 90, 100), 100 + CLOCKS_S, "before its start"),
        ((0, 1, 2, 90, DAY), 100 + CLOCKS_S, "after its end"),
        ((-2 * DAY, -DAY, -DAY, -DAY, -DAY), 0, "before its start"),
        ((-DAY, 1, 2, 90, DAY), 100 + 2 * CLOCKS_S, "before its start and after its end"),
    ],
)
def test_a_node_is_charged_between_its_executions_start_and_end(
    moments: tuple[float, ...], at_most: float, sentence: str
) -> None:
    one = execution(run_id=RUN, gangs=[gang(0, node(0, *moments), met=BEGAN + 1)])
    [kept], said = bounded([one], BEGAN + 10 * DAY)
    assert seconds(kept) == [at_most]
    assert said == [f"The record of use e1 of the run {RUN} has times {sentence}, which are left out."]


@pytest.mark.parametrize("name", ["waited_s", "saved_s", "number"])
def test_nothing_negative_is_a_record(name: str) -> None:
    about: dict[str, Any] = {"number": 0, "started": BEGAN, "released": BEGAN + 1}
    with pytest.raises(ValidationError):
        NodeUsage(**{**about, name: -5})


@pytest.mark.parametrize(("first", "second", "kept"), [(100, 60, [1, 0]), (60, 100, [0, 1]), (60, 60, [1, 0])])
def test_a_generation_that_two_executions_recorded_is_charged_once(first: int, second: int, kept: list[int]) -> None:
    gangs = [gang(0, node(0, 0, 1, 2, 50, end), met=BEGAN + 1) for end in (first, second)]
    both = [execution(execution=f"e{n}", gangs=[one]) for n, one in enumerate(gangs)]
    assert [len(one.gangs) for one in launched_once(both)] == kept
    other = [both[0], both[1].model_copy(update={"gangs": [gangs[1].model_copy(update={"generation": 1})]})]
    assert launched_once(other) == other
