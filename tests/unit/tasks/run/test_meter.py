"""What a run uses is recorded as it happens: charged once each, and known when the process was killed in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import NodeLost, StorageUnavailable
from data_contracts.executions import Followed, GangUsage, NodeUsage
from data_contracts.resolved import Price
from infra.machine import machine_id
from infra.processes.this_process import now_s
from infra.store import Store, layout
from tasks.costs.charges import charges
from tasks.run.meter import Meter, begin_stage, follow, metered, usage_of, used_by_gang, used_by_stage
from tasks.run.run import Run
from tests.support.runs import make_run

GPU = Price(machine="gpu", per_hour=36.0, price_date="2026-01-01", pool="gpu")


def run_in(store: Store, price: Price = GPU) -> Run:
    return make_run(store, spec={"tags": {"team": "a"}}, price=price, prices={"here": GPU})


def gang(generation: int, began: float) -> GangUsage:
    node = NodeUsage(number=0, started=began, joined=began, working=began, stopped=began + 2, released=began + 2)
    return GangUsage(
        stage="",
        where="trainings/k-0",
        generation=generation,
        local=False,
        nodes=[node],
        met=began,
        last_step=1,
        kept_step=1,
    )


def test_an_execution_is_recorded_from_its_start_to_its_end(store: Store) -> None:
    run = run_in(store)

    def work(run: Run) -> Any:
        begin_stage(run, "validate")
        used_by_stage(run, "validate", time.time() - 0.5, "ran")
        used_by_gang(run, "train", gang(0, time.time()))
        return "done"

    assert metered(work)(run) == "done"  # type: ignore[comparison-overlap, arg-type]
    usage = usage_of(store, "r1")
    [one] = usage.executions
    assert not usage.so_far
    assert (one.pipeline, one.tags, one.prices["train"]) == ("tiny", {"team": "a"}, GPU)
    assert one.machine == machine_id() != ""
    assert [stage.name for stage in one.stages] == ["validate"]
    assert [(each.stage, each.generation) for each in one.gangs] == [("train", 0)]
    assert usage_of(run.store, run.run_id).executions[0].execution == one.execution


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_a_time_of_day_that_is_set_meanwhile_charges_nothing(
    jump_s: float, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(run: Run) -> Any:
        began = now_s()
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
        begin_stage(run, "validate")
        used_by_stage(run, "validate", began, "ran")

    metered(work)(run_in(store))
    [one] = usage_of(store, "r1").executions
    assert one.began <= one.stages[0].began <= one.stages[0].ended <= one.ended < one.began + 3600


def test_an_error_ends_an_execution_and_a_second_one_is_charged_beside_it(store: Store) -> None:
    for _ in range(2):
        with pytest.raises(NodeLost):
            metered(Mock(side_effect=NodeLost("gone")))(run_in(store))
    assert [one.ended is not None for one in usage_of(store, "r1").executions] == [True, True]


def test_a_run_that_two_processes_carry_out_at_once_pays_each_launch_once(store: Store) -> None:
    began = time.time()

    def second(run: Run) -> Any:
        used_by_gang(run, "train", gang(0, began))

    def first(run: Run) -> Any:
        used_by_gang(run, "train", gang(0, began))
        metered(second)(run_in(store))  # Prefect executes the flow run again, while this process is stopped

    metered(first)(run_in(store))
    found = usage_of(store, "r1").executions
    assert len(found) == 2
    paid = [each for one in found for each in charges(one) if each.node is not None]
    assert [(each.generation, each.node_seconds) for each in paid] == [(0, pytest.approx(2))], "one payer"


def killed(run: Run, work: Callable[[], object]) -> None:
    """What a process leaves that is killed after its work: what lies in the store before its last record."""
    meter = Meter(run)
    run.live.meter = meter
    with meter.running():
        work()
        meter._create = lambda what, record: None  # type: ignore[method-assign]


def test_a_killed_process_is_charged_until_its_last_heartbeat(store: Store) -> None:
    run = run_in(store)

    def work() -> None:
        begin_stage(run, "validate")
        used_by_stage(run, "validate", time.time(), "ran")
        begin_stage(run, "train")
        follow(run, "train", "trainings/k-0", local=False)
        used_by_gang(run, "train", gang(0, time.time()))

    killed(run, work)
    usage = usage_of(store, "r1")
    [one] = usage.executions
    assert usage.so_far
    assert [(stage.name, stage.status) for stage in one.stages] == [("validate", "ran"), ("train", "killed")]
    assert one.ended == one.gangs[0].nodes[0].released, "the last that is known of it"
    assert {each.cause for each in charges(one) if each.node == 0} == {"work"}
    pointer = store.pointer(layout.usage_beat("r1", one.execution)).read()
    assert pointer.value["follows"] == [Followed(stage="train", where="trainings/k-0", local=False).to_json()]


def test_whoever_continues_settles_what_a_killed_process_used(store: Store) -> None:
    first, again, third = (run_in(store) for _ in range(3))
    killed(first, lambda: used_by_gang(first, "train", gang(0, time.time())))
    assert usage_of(store, "r1").so_far
    metered(lambda run: "done")(again)  # type: ignore[arg-type, return-value]
    [lost] = again.live.spent
    assert (lost.node_seconds, lost.usd) == (pytest.approx(2), pytest.approx(0.02))
    assert not usage_of(store, "r1").so_far
    metered(lambda run: "done")(third)  # type: ignore[arg-type, return-value]
    assert third.live.spent == [], "once"


def test_a_node_that_is_another_machine_is_told_once_and_the_price_stays(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def work(run: Run) -> Any:
        for generation, gpus in enumerate([8, 0, 0, None]):
            used = gang(generation, time.time())
            nodes = [node.model_copy(update={"gpus": gpus}) for node in used.nodes]
            used_by_gang(run, "train", used.model_copy(update={"nodes": nodes}))

    metered(work)(run_in(store, GPU.model_copy(update={"devices": 8})))
    [sentence] = [one.getMessage() for one in caplog.records if "price book" in one.getMessage()]
    assert sentence.startswith(
        "Node 0 of the pool gpu has 0 GPUs, but gpu, which the pool has in the price book, has 8"
    )
    [one] = usage_of(store, "r1").executions
    assert {each.price.per_hour for each in charges(one) if each.node == 0} == {36.0}


def test_a_store_that_does_not_answer_ends_no_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "create_once", Mock(side_effect=StorageUnavailable("away")))
    assert metered(lambda run: "done")(run_in(store)) == "done"  # type: ignore[comparison-overlap, arg-type, return-value]
