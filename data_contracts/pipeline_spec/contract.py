"""`contract`: what must be true of the data before it is used."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from data_contracts.pipeline_spec.arrival import ArrivalSpec
from data_contracts.pipeline_spec.base import Section
from data_contracts.pipeline_spec.contamination import ContaminationSpec
from data_contracts.pipeline_spec.drift import DriftSpec
from data_contracts.pipeline_spec.runner import Runner


class QuarantineSpec(Section):
    """Rows that break the contract are set aside instead of rejecting all of the data."""

    max_share: float = Field(default=0.01, ge=0, le=1)
    """The largest share of the rows that may be set aside, between 0 and 1; default 0.01. With more, the data is
    rejected."""


class SuiteSpec(Section):
    """What must be true of other rows than the raw data's; none of them is set aside."""

    suite: str | dict[str, Any]
    """A Great Expectations suite, as in `contract.suite`."""
    fail_on: Literal["critical", "warning", "info"] = "critical"
    """The mildest severity that rejects the rows; default `critical`."""


class ContractSpec(Section):
    """The contract: what must be true of the data before it is used."""

    suite: str | dict[str, Any]
    """A Great Expectations suite: the path of a JSON file, or the suite inline."""
    fail_on: Literal["critical", "warning", "info"] = "critical"
    """The mildest severity that rejects the data; default `critical`. Milder failures are reported."""
    parameters: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda values: not values)
    """Values for the suite's parameters: `{low: 0}` for each `{"$PARAMETER": "low"}` in it; default: none. The
    suites of evaluation sets, of `features` and of `predictions` get them, too."""
    runner: Runner = Field(default="local", exclude_if=lambda runner: runner == "local")
    """Where the raw files are measured: `local` (this machine) or a Dask cluster; default local. Never changes the
    report."""
    drift: DriftSpec | None = Field(default=None, exclude_if=lambda drift: drift is None)
    """The comparison with earlier data; default: none."""
    arrival: ArrivalSpec | None = Field(default=None, exclude_if=lambda arrival: arrival is None)
    """Whether the data came, in time and as much as before; default: not judged."""
    quarantine: QuarantineSpec | None = Field(default=None, exclude_if=lambda quarantine: quarantine is None)
    """Set aside the rows that break an expectation about rows, and judge the others; default: reject the data."""
    contamination: ContaminationSpec | None = Field(default=None, exclude_if=lambda one: one is None)
    """Whether rows of one split may also be in another; default: not checked."""
    features: SuiteSpec | None = Field(default=None, exclude_if=lambda features: features is None)
    """What must be true of the rows in the shards, after `shards.transform`; checked by shard; default nothing."""
    predictions: SuiteSpec | None = Field(default=None, exclude_if=lambda predictions: predictions is None)
    """What must be true of the predictions of a candidate, on each evaluation set; checked by evaluate; default
    nothing."""
