"""What a node's newest message gives: nothing that this version does not know, and no label without a bound."""

from __future__ import annotations

from typing import Any

from data_contracts.costs import GpuReading, Resources
from data_contracts.messages.gang import Heartbeat, NodeExit, RankEnd, RankMeasures, RankReport
from infra.metrics import Counts, failed_saves, node_samples

MEASURED = RankMeasures(
    spent_s={"fetching": 1.5, "daydreaming": 9.0},
    step_counts=[0, 2],
    steps_s=0.0025,
    loss=0.5,
    gradient_norm=2.0,
    mfu=0.25,
    memory_bytes=10,
    device_memory_bytes=20,
    saves=2,
    failed_saves=1,
    saving_s=3.0,
)


def report(rank: int, **changes: Any) -> RankReport:
    return RankReport(**{"rank": rank, "step": 7 + rank, "measured": MEASURED, "stalled_s": 0.25, **changes})


def samples(messages: dict[int, Any], at: dict[int, float] | None = None) -> dict[tuple[str, ...], Any]:
    """The values by name and labels."""
    return {(sample.name, *sample.labels): sample.value for sample in node_samples(messages, at or {})}


def test_ranks_give_their_own_figures_and_rank_0_those_of_the_training() -> None:
    beats = {0: Heartbeat(ranks=[report(0), report(1)]), 1: Heartbeat(ranks=[report(2)])}
    found = samples(beats, {0: 100.0, 1: 101.0})
    assert (found["step",], found["loss",], found["gradient_norm",]) == (7, 0.5, 2.0)
    assert found["step_duration_seconds",] == Counts(2, 0.0025, [0, 2])
    assert (found["checkpoint_save_duration_seconds",], failed_saves(beats)) == (Counts(3, 3.0), 3)
    assert found["rank_activity_seconds_total", "1", "2", "fetching"] == 1.5
    assert (found["rank_mfu_ratio", "0", "1"], found["rank_device_memory_bytes", "0", "0"]) == (0.25, 20)
    assert found["node_heartbeat_time_seconds", "1"] == 101.0
    assert not any("daydreaming" in key for key in found)


def test_a_node_gives_what_it_used_and_what_its_gpus_say() -> None:
    gpu = GpuReading(index=3, busy=0.5, used_bytes=1, total_bytes=2, watts=300.0)
    used = Resources(millijoules=2500, put_requests=4, read_bytes=5)
    found = samples({0: Heartbeat(used=used, sensors=[gpu])})
    assert (found["node_energy_joules_total", "0"], found["node_store_requests_total", "0", "put"]) == (2.5, 4)
    assert (found["gpu_utilization_ratio", "0", "3"], found["gpu_power_watts", "0", "3"]) == (0.5, 300.0)
    assert ("gpu_temperature_celsius", "0", "3") not in found


def test_a_node_that_ended_keeps_its_last_figures_and_one_that_says_nothing_gives_nothing() -> None:
    assert samples({}) == {}
    assert (
        samples({0: NodeExit(status="failed", error={"cause": "hung"}, ranks=[RankEnd(rank=0, report=report(0))])})[
            "step",
        ]
        == 7
    )
    earlier = samples({0: Heartbeat(ranks=[report(0, measured=None)])})  # of an earlier version
    assert ("loss",) not in earlier
    assert earlier["step",] == 7
