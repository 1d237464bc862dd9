"""How many ranks score a checkpoint, and how they hold its parameters; this does not affect the scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Launch
from data_contracts.pipeline_spec.mesh import SHARDED
from infra.store import layout
from tasks.run.run import Run

RANK = "training.score.rank"


@dataclass(frozen=True)
class ScoringLayout:
    """Nodes, ranks of each, and `settings`: how the ranks share the parameters, as a rank reads it."""

    nodes: int
    devices: int
    settings: dict[str, Any]

    def errand(self) -> dict[str, Any]:
        """Fields of an `ErrandRequest` for these ranks."""
        return {"nodes": self.nodes, "devices": self.devices, "entry": RANK, "layout": self.settings}

    @property
    def is_gang(self) -> bool:
        """Whether there are several ranks."""
        return self.nodes * self.devices > 1


def layout_of(run: Run, checkpoint: Checkpoint, train: Mapping[str, Any], *, champion: bool) -> ScoringLayout:
    """How to score a checkpoint: as the spec says, else as it was trained if its parameters were sharded.

    A champion always has its own layout. On this machine, a checkpoint of more ranks than this run trains with here is
    scored by one process unless the spec says otherwise. A data module of the user's is scored by one process.

    Args:
        train: settings that the checkpoint was trained with.

    Raises:
        UsageError: these ranks cannot score it.
    """
    spec = run.spec.evaluate
    nodes, devices, strategy = (None, None, None) if champion else (spec.nodes, spec.devices, spec.strategy)
    if train["lightning"].get("data") or run.external:
        if (nodes or 1) * (devices or 1) > 1:
            raise UsageError(
                "evaluate.devices: your own data module makes its own batches, which one process scores.",
                remedy="Leave evaluate.nodes and evaluate.devices out, or use the sealed shards.",
            )
        return ScoringLayout(1, 1, {})
    shard_ranks = None
    chosen = strategy or train["strategy"]
    if chosen in SHARDED and nodes is None and devices is None and _is_placed_as_trained(run, checkpoint):
        nodes, devices, shard_ranks = _as_trained(run, checkpoint)
    nodes, devices = nodes or 1, devices or 1
    return ScoringLayout(
        nodes,
        devices,
        {
            "strategy": chosen,
            "shard_modules": train.get("shard_modules") if chosen in SHARDED else None,
            "shard_ranks": shard_ranks,
            "collective_timeout_s": run.spec.train.collective_timeout_s,
        },
    )


def _is_placed_as_trained(run: Run, checkpoint: Checkpoint) -> bool:
    """Whether as many ranks as trained can be expected where evaluate runs: a pool's gang may not fit this machine."""
    evaluate, train = run.spec.evaluate, run.spec.train
    if evaluate.launcher == "work-pool":
        return True
    return train.launcher == "local" and checkpoint.world_size <= train.world_size


def _as_trained(run: Run, checkpoint: Checkpoint) -> tuple[int, int, int | None]:
    """Nodes, devices and shard_ranks of the generation that wrote a checkpoint; one node if its launch is gone."""
    path = layout.launch(checkpoint.training, checkpoint.generation)
    launch = run.store.find_as(path, Launch.from_json)
    if launch is None or checkpoint.world_size % launch.devices:
        return 1, checkpoint.world_size, None
    return checkpoint.world_size // launch.devices, launch.devices, launch.train.get("shard_ranks")
