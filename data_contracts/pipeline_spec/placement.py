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


class Spread(Placed):
    """A section whose work several ranks may share; that does not affect the result either."""

    nodes: int | None = Field(default=None, ge=1, exclude_if=lambda nodes: nodes is None)
    """Number of nodes; default 1, for `fsdp` and `hsdp` as trained."""
    devices: int | None = Field(default=None, ge=1, exclude_if=lambda devices: devices is None)
    """Ranks per node; default 1, for `fsdp` and `hsdp` as trained."""
    strategy: Literal["ddp", "fsdp", "hsdp", "single"] | None = Field(
        default=None, exclude_if=lambda strategy: strategy is None
    )
    """How the ranks hold the parameters, as in `train.strategy`; default as trained."""

    @model_validator(mode="after")
    def _meshes(self) -> Spread:
        ranks = (self.nodes or 1) * (self.devices or 1)
        if self.strategy == "single" and ranks > 1:
            raise FieldError("strategy", f"single is one rank, but nodes x devices = {ranks}; use ddp or fsdp")
        given = self.nodes is not None or self.devices is not None
        if self.strategy == "hsdp" and given and 1 in (self.nodes or 1, self.devices or 1):
            raise FieldError("strategy", "hsdp needs at least two nodes of two devices; use fsdp, or more of them")
        return self


class VerifySpec(Spread):
    """How a checkpoint is verified."""
