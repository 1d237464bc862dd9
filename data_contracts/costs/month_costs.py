"""What the runs of one store used in a calendar month, kept when `gc` has deleted the runs themselves."""

from __future__ import annotations

import operator
from typing import Annotated

from pydantic import Field

from data_contracts.costs.resources import NOTHING, Resources
from data_contracts.records import HandOff, Record
from data_contracts.times import Month

Known = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class MonthLine(Record):
    """What one run used in a month for one stage and cause, on one kind of machine.

    Attributes:
        pool: the work pool of the nodes; "": not of one.
        gpu_seconds: the known part; uncounted_s: node-seconds of nodes whose GPUs nobody knows.
        amount: the known part of its cost, in `currency`; unpriced_s: node-seconds without a known price.
        joules: measured and estimated energy; grams: of CO2 equivalent, as far as known.
    """

    run_id: str
    pipeline: str
    model: str
    tags: dict[str, str]
    stage: str
    cause: str
    machine: str
    pool: str = Field(default="", exclude_if=operator.not_)
    node_seconds: Known
    gpu_seconds: Known
    uncounted_s: Known = Field(default=0.0, exclude_if=operator.not_)
    unpriced_s: Known = 0.0
    currency: str = "USD"
    amount: Known = 0.0
    joules: Known = 0.0
    grams: Known = 0.0
    used: Resources = NOTHING


class MonthCosts(HandOff):
    """A month's figures of a store, created once.

    Attributes:
        month: such as 2026-10, in UTC.
        made: when, in ISO.
        unreadable: runs whose records were damaged, and that no line counts.
        so_far: runs that had not ended, and were counted up to then.
        has_pools: whether lines name their pools; those of an earlier Trainwright do not.
    """

    month: Month
    made: str
    lines: list[MonthLine]
    unreadable: list[str] = Field(default_factory=list)
    so_far: list[str] = Field(default_factory=list)
    has_pools: bool = Field(default=False, exclude_if=operator.not_)
