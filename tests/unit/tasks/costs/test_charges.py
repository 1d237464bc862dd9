"""One cause, price and payer for each node-second: goodput, waste by cause and idle time add up to the whole."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.costs import NOTHING, Resources
from data_contracts.executions import ExecutionUsage, GangUsage, NodeUsage, StageUsage
from data_contracts.resolved import Price
from tasks.costs.charges import MICRO, Charge, charges
from tasks.costs.sums import charged

GPU = Price(machine="gpu", per_hour=36.0, price_date="2026-01-01", devices=8, pool="gpu")
HERE = Price(machine="here", per_hour=3.6, price_date="2026-01-01")
BEGAN = 1_764_000_000.0


def execution(**changes: Any) -> ExecutionUsage:
    known: dict[str, Any] = {
        "run_id": "r1",
        "execution": "e1",
        "pipeline": "tiny",
        "model": "tiny",
        "tags": {"team": "a"},
        "prices": {"train": GPU, "here": HERE},
        "began": BEGAN,
        "ended": BEGAN + 100,
    }
    return ExecutionUsage(**{**known, **changes})


def gang(generation: int, *nodes: NodeUsage, **changes: Any) -> GangUsage:
    known: dict[str, Any] = {"stage": "train", "where": "trainings/k-0", "local": False, "last_step": 10}
    known["kept_step"] = changes.get("last_step", 10)
    return GangUsage(generation=generation, nodes=list(nodes), **{**known, **changes})


def node(number: int, *moments: float, **changes: Any) -> NodeUsage:
    """Moments after BEGAN: started, joined, working, stopped, released."""
    started, joined, working, stopped, released = (BEGAN + one for one in moments)
    known = {"started": started, "joined": joined, "working": working, "stopped": stopped, "released": released}
    return NodeUsage(number=number, **{**known, **changes})


def by_cause(found: list[Charge], **only: Any) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    for one in found:
        if all(getattr(one, name) == value for name, value in only.items()):
            spent[one.cause] += one.node_seconds
    return {cause: round(seconds, 6) for cause, seconds in spent.items()}


def test_a_node_from_launch_to_release() -> None:
    one = node(0, 10, 12, 20, 60, 63, waited_s=4.0, saved_s=6.0)
    found = charges(execution(gangs=[gang(0, one, met=BEGAN + 15)]))
    assert by_cause(found, node=0) == {"start": 7, "gang": 3, "work": 30, "data": 4, "checkpoint": 6, "end": 3}
    assert by_cause(found, node=None) == {"conductor": 100}
    [work] = [one for one in found if one.cause == "work"]
    assert (work.amount, work.gpu_seconds) == (pytest.approx(0.3), 240)


def test_what_a_failure_costs_is_told_by_cause() -> None:
    first = gang(0, node(0, 0, 1, 2, 12, 13), met=BEGAN + 1, ended="node_lost", first_step=0, last_step=10, kept_step=4)
    again = gang(1, node(0, 15, 16, 20, 26, 26), met=BEGAN + 16, first_step=4, last_step=10, kept_step=10)
    spent = by_cause(charges(execution(gangs=[first, again])), stage="train")
    # 6 of 10 steps were done again, the second start is a retry, and between the generations the pool's node waited.
    assert spent == {"start": 2, "work": 4 + 6, "lost": 6, "retry": 1 + 5, "idle": 2}


def test_a_generation_that_kept_nothing_is_a_retry() -> None:
    failed = gang(0, node(0, 0, 1, 2, 2, 3), met=BEGAN + 1, ended="hung", last_step=0, kept_step=0)
    assert by_cause(charges(execution(gangs=[failed])), node=0) == {"retry": 3}


def test_a_node_that_never_joined_was_waited_for() -> None:
    absent = NodeUsage(number=1, started=BEGAN, released=BEGAN + 30)
    found = charges(execution(gangs=[gang(0, node(0, 0, 1, 30, 30, 30), absent, ended="admission", last_step=0)]))
    assert (by_cause(found, node=1), by_cause(found, node=0)) == ({"gang": 30}, {"retry": 1, "gang": 29})


def test_a_machine_is_not_charged_twice_for_nodes_of_its_own() -> None:
    local = gang(0, node(0, 20, 21, 22, 60, 60), met=BEGAN + 21, local=True)
    stages = [
        StageUsage(name="validate", began=BEGAN + 1, ended=BEGAN + 10, status="ran"),
        StageUsage(name="train", began=BEGAN + 10, ended=BEGAN + 70, status="ran"),
        StageUsage(name="evaluate", began=BEGAN + 70, ended=BEGAN + 100, status="failed"),
    ]
    found = charges(execution(stages=stages, gangs=[local]))
    assert sum(one.node_seconds for one in found) == pytest.approx(100)
    assert by_cause(found, node=None) == {"conductor": 1 + 10 + 10, "work": 9, "retry": 30}


def test_an_unknown_price_is_not_zero() -> None:
    unknown = Price(machine="", per_hour=None, price_date="", pool="gpu")
    found = charges(execution(prices={"train": unknown, "here": HERE}, gangs=[gang(0, node(0, 0, 1, 2, 3, 4))]))
    assert {one.amount for one in found if one.node == 0} == {None}


MOMENT = st.floats(-5, 400, allow_nan=False)
LENGTH = st.one_of(st.floats(0, 50, allow_nan=False), st.sampled_from([0.0, 0.001, 0.0015, 1e-6]))


COUNT = st.one_of(st.integers(0, 3), st.integers(0, 10**12))
USED = st.one_of(
    st.none(),
    st.builds(
        Resources,
        put_requests=COUNT,
        get_requests=COUNT,
        written_bytes=COUNT,
        read_bytes=COUNT,
        millijoules=st.one_of(st.none(), COUNT),
    ),
)


@st.composite
def histories(draw: Any) -> ExecutionUsage:
    """Executions as nobody would write them: clocks that go back, nodes that never joined, launches recorded twice."""
    at, gangs = 0.0, []
    for generation in range(draw(st.integers(0, 4))):
        nodes = []
        for number in range(draw(st.integers(0, 4))):
            moments = [at + draw(LENGTH)]
            for _ in range(4):
                moments.append(moments[-1] + draw(LENGTH))
            if draw(st.booleans()):
                draw(st.randoms()).shuffle(moments)
            lacks = draw(st.sampled_from([(), ("joined",), ("working", "stopped"), ("joined", "working", "stopped")]))
            more = {**dict.fromkeys(lacks), "used": draw(USED)}
            nodes.append(node(number, *moments, waited_s=draw(LENGTH), saved_s=draw(LENGTH), **more))
        last = draw(st.integers(0, 30_000))
        gangs.append(
            gang(
                generation,
                *nodes,
                met=draw(st.one_of(st.none(), MOMENT.map(lambda moment: BEGAN + moment))),
                local=draw(st.booleans()),
                ended=draw(st.sampled_from(["done", "hung", "node_lost", ""])),
                first_step=draw(st.integers(0, 30_000)),
                last_step=last,
                kept_step=draw(st.integers(0, 30_000)),
                where=draw(st.sampled_from(["trainings/k-0", "trainings/k-0", "runs/r1/errands/v"])),
                stage=draw(st.sampled_from(["train", "verify"])),
            )
        )
        at = max([at, *(one.released - BEGAN for one in nodes)]) + draw(LENGTH)
    if gangs and draw(st.booleans()):
        gangs.append(gangs[0])
    stages = []
    for name in draw(st.lists(st.sampled_from(["validate", "shard", "train", "verify", "promote"]), max_size=5)):
        began = BEGAN + draw(MOMENT)
        status = draw(st.sampled_from(["ran", "reused", "failed", "killed"]))
        stages.append(StageUsage(name=name, began=began, ended=began + draw(LENGTH), status=status, used=draw(USED)))
    ended = draw(st.one_of(st.none(), st.just(BEGAN + at)))
    return execution(gangs=gangs, stages=stages, ended=ended, used=draw(USED))


def capacity(one: ExecutionUsage) -> int:
    """Nodes × wall clock in microseconds, counted without the charges' own code."""

    def micro(seconds: float) -> int:
        return round(seconds * MICRO)

    launched: dict[tuple[str, int], GangUsage] = {}
    for each in one.gangs:
        if each.nodes:
            launched.setdefault((each.where, each.generation), each)
    whole, own = 0, set()
    for (where, number), each in launched.items():
        spans = {n.number: (micro(n.started), max(micro(n.released), micro(n.started))) for n in each.nodes}
        if each.local:
            own |= {(micro(n.started), micro(n.released)) for n in each.nodes}
        later = [other for place, other in launched if place == where and other > number]
        ends = [micro(n.released) for n in each.nodes]
        if later:
            ends.append(min(micro(n.started) for n in launched[where, min(later)].nodes))
        for n in each.nodes:
            began, ended = spans[n.number]
            whole += max(ended, *ends) - began if n.joined is not None and not each.local else ended - began
    began, ended = micro(one.began), max(micro(one.ended or one.began), micro(one.began))
    edges = sorted({began, ended, *(min(max(edge, began), ended) for span in own for edge in span)})
    for left, right in itertools.pairwise(edges):
        if not any(start <= left and right <= stop for start, stop in own):
            whole += right - left
    return whole


def used_in_all(one: ExecutionUsage) -> Resources:
    """Everything that was used, once each, counted without the charges' own code."""
    launched: dict[tuple[str, int], GangUsage] = {}
    for each in one.gangs:
        if each.nodes:
            launched.setdefault((each.where, each.generation), each)
    stages = sum((stage.used for stage in one.stages if stage.used is not None), NOTHING)
    nodes = [n.used for each in launched.values() for n in each.nodes if n.used is not None]
    return sum(nodes, stages + ((one.used or NOTHING) - stages))


def check(one: ExecutionUsage) -> None:
    found = charges(one)
    whole, paid = used_in_all(one), sum((each.used for each in found), NOTHING)
    for name in ("put_requests", "get_requests", "written_bytes", "read_bytes", "millijoules"):
        assert (getattr(paid, name) or 0) == (getattr(whole, name) or 0), f"{name} has one payer"
    middle = round((BEGAN + 20) * MICRO)
    halves = [charged([one], 0.0, middle / MICRO), charged([one], middle / MICRO, float(2**40))]
    assert sum((each.used for half in halves for _, each in half), NOTHING) == paid, "a bound that cuts loses nothing"
    assert sum(each.ended_us - each.began_us for each in found) == capacity(one)
    by_node: dict[Any, list[Charge]] = defaultdict(list)
    for each in found:
        assert each.began_us < each.ended_us or (each.began_us == each.ended_us and each.used.anything)
        where = next((g.where for g in one.gangs if g.generation == each.generation and g.stage == each.stage), "")
        by_node[each.generation, each.node, each.stage if each.node is not None else "", where].append(each)
    for spans in by_node.values() if len({g.where for g in one.gangs}) < 2 else ():
        for before, after in itertools.pairwise(sorted(spans, key=lambda each: each.began_us)):
            assert before.ended_us <= after.began_us, "two charges for one moment of one node"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_goodput_waste_and_idle_time_add_up_to_the_whole(one: ExecutionUsage) -> None:
    check(one)


@pytest.mark.sweep
@settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_goodput_waste_and_idle_time_add_up_in_a_thousand_histories(one: ExecutionUsage) -> None:
    check(one)
