"""One metric over a set: its checked value, and the outcomes whose mean it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from data_contracts.errors import UsageError
from data_contracts.handoffs import MetricValue
from training.score.row_means import Outcomes


class NotFinite(UsageError):
    """A metric has no finite value for the rows that it was computed on."""


@dataclass
class Scored:
    """One metric's value over a set, with its outcomes, and a digest of the targets or the batches it was scored on.

    Attributes:
        undefined: why the value is NaN; "" if it is a number.
    """

    value: MetricValue
    outcomes: Outcomes
    rows: dict[str, str] = field(default_factory=dict)
    undefined: str = ""

    @classmethod
    def of(cls, value: float, mode: str, rows: int, outcomes: Outcomes) -> Scored:
        """A value over `rows` rows whose unit is that of its outcomes."""
        return cls(MetricValue(value=value, mode=mode, rows=rows, unit=outcomes.unit), outcomes)

    @classmethod
    def without_value(cls, reason: str, mode: str, rows: int) -> Scored:
        """A value that is NaN, and why."""
        return cls(MetricValue(value=math.nan, mode=mode, rows=rows, unit="dataset"), Outcomes("dataset", [], []),
                   undefined=reason)  # fmt: skip


def shortest(value: float, computed: Any) -> float:
    """The shortest decimal of a single-precision value: 0.949999988 must not miss a gate at 0.95."""
    single = isinstance(computed, torch.Tensor) and computed.dtype is torch.float32
    return float(str(np.float32(value))) if single else value


def finite_number(name: str, value: Any) -> float:
    """The value of a metric as a number; UsageError if it is several numbers, or not finite."""
    number = one_number(name, value)
    if not math.isfinite(number):
        raise NotFinite(
            f"evaluate.metrics.{name}: its value is {number}.",
            remedy="A gate needs a finite number; check the metric's settings and the test rows.",
        )
    return number


def one_number(name: str, value: Any) -> float:
    """The value of a metric as a number, which may be NaN; UsageError if it is several numbers."""
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise UsageError(
            f"evaluate.metrics.{name}: it gives {value.numel()} numbers, one is needed.",
            remedy="Choose an average in init_args.",
        )
    return float(value)
