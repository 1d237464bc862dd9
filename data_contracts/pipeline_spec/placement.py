"""Where the work of a section is done; the place does not affect the result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from data_contracts.pipeline_spec.base import FieldError, Section


class Placed(Section):
    """A section whose work is done on this machine, or on machines of a Prefect work pool."""

    launcher: Literal["local", "work-pool"] = "local"
    """Where processes start. `local`: on this machine; `work-pool`: each node as a flow run on a Prefect work pool."""
    pool: str | None = None
    """For `work-pool`: the name of the Prefect work pool."""

    @model_validator(mode="after")
    def _has_its_pool(self) -> Placed:
        if self.launcher == "work-pool" and not self.pool:
            raise FieldError("pool", "is missing; launcher work-pool needs the name of a Prefect work pool")
        if self.launcher == "local" and self.pool is not None:
            raise FieldError("pool", "has an effect only with launcher: work-pool; set that, or leave this out")
        return self


def in_same_place(one: Placed, other: Placed) -> bool:
    """Whether two sections' work is done on the same kind of machine: both here, or both on the same pool."""
    return (one.launcher, one.pool) == (other.launcher, other.pool)


class Spread(Placed):
    """A section whose work several ranks may share; that does not affect the result either."""

    nodes: int | None = Field(default=None, ge=1, exclude_if=lambda nodes: nodes is None)
    """Number of nodes; default 1. For `fsdp` and `hsdp`, if neither `nodes` nor `devices` is set: as trained."""
    devices: int | None = Field(default=None, ge=1, exclude_if=lambda devices: devices is None)
    """Ranks per node; default 1. For `fsdp` and `hsdp`, if neither `nodes` nor `devices` is set: as trained."""
    strategy: Literal["ddp", "fsdp", "hsdp", "single"] | None = Field(
        default=None, exclude_if=lambda strategy: strategy is None
    )
    """How the ranks hold the parameters, as in `train.strategy`. Default: as trained, but several ranks use `ddp`
    instead of `single`, and `fsdp` instead of `hsdp` if they are too few for it."""

    @model_validator(mode="after")
    def _meshes(self) -> Spread:
        ranks = (self.nodes or 1) * (self.devices or 1)
        if self.strategy == "single" and ranks > 1:
            raise FieldError("strategy", f"single is one rank, but nodes x devices = {ranks}; use ddp or fsdp")
        return self

    @property
    def has_counts(self) -> bool:
        """Whether `nodes` or `devices` is set."""
        return self.nodes is not None or self.devices is not None


class VerifySpec(Spread):
    """How a checkpoint is verified: where, and on how many ranks."""
