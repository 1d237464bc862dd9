"""`contract`: what must be true of the data before it is used."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from data_contracts.pipeline_spec.arrival import ArrivalSpec
from data_contracts.pipeline_spec.base import Section
from data_contracts.pipeline_spec.drift import DriftSpec


class ContractSpec(Section):
    """The contract: what must be true of the data before it is used."""

    suite: str | dict[str, Any]
    """A Great Expectations suite: the path of a JSON file, or the suite inline."""
    fail_on: Literal["critical", "warning", "info"] = "critical"
    """The mildest severity that rejects the data; default `critical`. Milder failures are reported."""
    drift: DriftSpec | None = Field(default=None, exclude_if=lambda drift: drift is None)
    """The comparison with earlier data; default: none."""
    arrival: ArrivalSpec | None = Field(default=None, exclude_if=lambda arrival: arrival is None)
    """Whether the data came, in time and as much as before; default: not judged."""
