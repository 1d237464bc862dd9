"""How ranks form a mesh: what is refused, and what a smaller gang makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.pipeline_spec import TrainSpec
from tests.support.refusals import refusal

RANKS = "train.nodes x train.devices ="
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"devices": 4, "shard_ranks": 2}, "shard_ranks: needs strategy hsdp, but it is ddp; leave it out"),
    (
        {"devices": 4, "strategy": "hsdp", "shard_ranks": 3},
        f"shard_ranks: 3 does not divide {RANKS} 4; it is the number of ranks in a replica",
    ),
    (
        {"devices": 4, "strategy": "hsdp"},
        f"strategy: hsdp needs two replicas, but train.devices 4 leaves one on {RANKS} 4; use fsdp, or set a smaller "
        "train.shard_ranks",
    ),
    (
        {"nodes": 4, "strategy": "hsdp"},
        "strategy: hsdp shards a replica, but train.devices is 1; use ddp, or set train.shard_ranks",
    ),
]


def spec(settings: dict[str, Any]) -> TrainSpec:
    return TrainSpec.model_validate({"lightning": {}, "global_batch_size": 48, **settings})


@pytest.mark.parametrize(("settings", "error"), REFUSED)
def test_ranks_that_make_no_mesh_are_refused(settings: dict[str, Any], error: str) -> None:
    assert error in refusal(ValidationError, spec, settings)


@pytest.mark.parametrize(
    ("settings", "world_size", "mesh"),
    [
        ({}, 4, (4, 1)),
        ({"strategy": "fsdp"}, 4, (1, 4)),
        ({"strategy": "hsdp", "nodes": 4, "devices": 2}, 8, (4, 2)),
        ({"strategy": "hsdp", "nodes": 4, "devices": 2}, 6, (3, 2)),
        ({"strategy": "hsdp", "nodes": 8, "shard_ranks": 4}, 6, (1, 6)),  # four of six do not come out even
        ({"strategy": "hsdp", "nodes": 8, "shard_ranks": 4}, 2, (1, 2)),
    ],
)
def test_a_replica_keeps_its_ranks_where_the_gang_is_smaller(
    settings: dict[str, Any], world_size: int, mesh: tuple[int, int]
) -> None:
    assert spec(settings).mesh(world_size) == mesh
