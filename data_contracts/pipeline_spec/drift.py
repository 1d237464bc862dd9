"""`contract.drift`: what the raw data is compared with, and what a change leads to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.pipeline_spec.base import Section


class DriftSpec(Section):
    """The comparison of the raw data with earlier data, such as the data of the champion."""

    against: str = "champion"
    """The earlier data: `champion` (the data of the version that `promote.alias` names; default), `MODEL@ALIAS`,
    `datasets/…` or `contracts/…` in the store, or the path of a profile (a `.json` file)."""
    fail_on: Literal["critical", "warning", "never"] = "never"
    """The mildest change that rejects the data: `warning` (a column moved), `critical` (it moved far) or `never`
    (default)."""
    columns: list[str] = Field(default_factory=list)
    """Columns to compare; default: all."""
    ignore: list[str] = Field(default_factory=list)
    """Columns that are not compared; default: none."""
    # A run may have it with `fail_on: never`: the run that the automation starts accepts the data.
    retrain: bool = False
    """Whether `trainwright deploy` makes an automation that retrains on data that drift rejected; default: false."""
