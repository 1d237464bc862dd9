"""Where the work of a section is done; the place does not affect the result."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

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


class VerifySpec(Placed):
    """Where a checkpoint is verified."""
