"""`contract`: what must be true of the data before it is used."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from data_contracts.pipeline_spec.base import Section


class ContractSpec(Section):
    """The contract: what must be true of the data before it is used."""

    suite: str | dict[str, Any]
    """A Great Expectations suite: the path of a JSON file, or the suite inline."""
    fail_on: Literal["critical", "warning", "info"] = "critical"
    """The mildest severity that rejects the data; default `critical`. Milder failures are reported."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Values for the suite's parameters: `{low: 0}` for each `{"$PARAMETER": "low"}` in it; default: none."""
