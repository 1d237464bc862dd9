"""Which faults a game day injects into which pipeline, and that each stands in docs/recovery.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.gang import FaultName
from data_contracts.pipeline_spec import PipelineSpec
from tasks.gameday import EVERY_STEPS, FAULTS, NOT_TRIED, STEPS, chosen, keeps_weights, why_not
from tests.support.tiny import SPEC


def spec(retry: dict[str, int] | None = None, **train: Any) -> PipelineSpec:
    return PipelineSpec.model_validate({**SPEC, "retry": retry or {}, "train": {**SPEC["train"], **train}})


def test_the_catalogue_has_every_fault_once() -> None:
    assert tuple(FAULTS) == get_args(FaultName)
    assert not FAULTS.keys() & NOT_TRIED.keys()


def test_every_fault_comes_before_the_training_ends() -> None:
    """Also if the first checkpoints are committed late: there is a second chance."""
    last = max(fault.checkpoints for fault in FAULTS.values())
    assert (last + 1) * EVERY_STEPS + EVERY_STEPS // 2 < STEPS


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.within_s])
def test_a_limit_is_that_of_the_page_on_recovery(name: FaultName, repository: Path) -> None:
    words = {
        "rank-killed": "| a process ended without an answer | within 5 s |",
        "rank-stopped": "stopped: within 15 s |",
        "node-killed": "| a node is gone: no heartbeat | within 15 s |",
        "node-stopped": "| a node is gone: no heartbeat | within 15 s |",
    }
    assert words[name] in (repository / "docs/recovery.md").read_text()
    assert f"within {FAULTS[name].within_s:g} s" in words[name]


def test_faults_are_chosen_by_name_in_the_order_of_the_catalogue() -> None:
    assert [fault.name for fault in chosen(["node-killed", "rank-killed"])] == ["rank-killed", "node-killed"]
    assert chosen(None) == chosen([]) == list(FAULTS.values())
    with pytest.raises(UsageError, match=r"--only disk-full: a game day does not inject this fault: fills the disk"):
        chosen(["disk-full"])
    with pytest.raises(UsageError, match=r"--only flood: a game day does not inject this fault\. It injects rank-kill"):
        chosen(["flood"])


@pytest.mark.parametrize(
    ("name", "retry", "in_folder", "why"),
    [
        ("rank-killed", {}, False, ""),
        ("rank-killed", {"node_lost": 0}, True, "retry.node_lost is 0, so it ends the training"),
        ("rank-hung", {"node_lost": 0}, True, ""),
        ("conductor-killed", {"node_lost": 0, "hung": 0, "preempted": 0}, False, ""),
        ("checkpoint-damaged", {}, True, ""),
        ("checkpoint-damaged", {}, False, "the store is on S3, where a sealed file cannot be changed in place"),
    ],
)
def test_a_pipeline_may_be_unable_to_try_a_fault(
    name: FaultName, retry: dict[str, int], in_folder: bool, why: str
) -> None:
    assert why_not(FAULTS[name], spec(retry), in_folder=in_folder) == why


@pytest.mark.parametrize(
    ("hang_timeout_s", "limit_s", "wait_s"), [(45.0, 60.0, 15.0), (10.0, 25.0, 10 / 3), (3600.0, 3615.0, 20.0)]
)
def test_a_step_waits_less_for_a_checkpoint_than_a_rank_may_stand_still(
    hang_timeout_s: float, limit_s: float, wait_s: float
) -> None:
    assert FAULTS["rank-hung"].limit_s(hang_timeout_s) == limit_s
    assert FAULTS["node-killed"].limit_s(hang_timeout_s) == 15.0
    assert FAULTS["rank-hung"].planned(hang_timeout_s).wait_s == wait_s


def test_weights_are_promised_where_the_gang_keeps_its_size() -> None:
    assert keeps_weights(spec())
    assert keeps_weights(spec(nodes=2, strategy="ddp"))
    assert not keeps_weights(spec(nodes=2, min_nodes=1, strategy="ddp", launcher="work-pool", pool="gpu"))
