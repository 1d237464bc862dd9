"""What a stage says about a cluster that does its work; nothing here imports Dask or Prefect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterStage:
    """A stage whose work a cluster may do.

    Attributes:
        name: of the stage.
        field: of the spec, which names the cluster.
        makes: what the stage makes, which is the same without a cluster.
        if_memory_ran_out: what to do then.
    """

    name: str
    field: str
    makes: str
    if_memory_ran_out: str
