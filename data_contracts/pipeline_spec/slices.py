"""`evaluate.slices`: parts of the rows that are also judged on their own."""

from __future__ import annotations

from pydantic import Field, model_validator

from data_contracts.expressions.row_conditions import Condition, ConditionError, read_condition
from data_contracts.pipeline_spec.base import FieldError, Section

Bound = int | float | str
Value = bool | int | float | str


class SliceSpec(Section):
    """Rows by a column's range or values, or by a condition; a missing value is in no range and among no values."""

    column: str | None = None
    """A column kept in the dataset; give it with `min` or `max`, or with `values`."""
    min: Bound | None = None
    """With `column`: the least value, inclusive: a number, or an ISO date or time in quotes; default no limit."""
    max: Bound | None = None
    """With `column`: the value above all, exclusive; default no limit."""
    values: list[Value] | None = Field(default=None, min_length=1)
    """With `column`: the values of the rows, such as [DE, AT]."""
    where: str | None = None
    """Instead of `column`: a condition on columns, such as `age > 60 and country == 'DE'`."""

    @model_validator(mode="after")
    def _one(self) -> SliceSpec:
        ranged = self.min is not None or self.max is not None
        if (self.column is None) == (self.where is None):
            raise ValueError("give either column or where, and not both")
        if self.where is not None and (ranged or self.values is not None):
            raise FieldError("where", "excludes min, max and values; write them as a part of the condition")
        if self.column is not None and ranged == (self.values is not None):
            raise FieldError("column", "needs min or max, or else values")
        alike = isinstance(self.min, str) == isinstance(self.max, str)
        if self.min is not None and self.max is not None and alike and not self.min < self.max:  # type: ignore[operator]
            raise FieldError("max", f"must be above min ({self.min}); max itself is not in the slice")
        try:
            self.condition  # noqa: B018
        except ConditionError as error:
            raise FieldError("where" if self.where is not None else "column", str(error)) from None
        return self

    @property
    def condition(self) -> Condition:
        """The condition that its rows meet."""
        if self.where is not None:
            return read_condition(self.where)
        column = f"col({self.column!r})"
        if self.values is not None:
            return read_condition(f"{column} in {self.values!r}")
        bounds = [f"{column} >= {self.min!r}"] if self.min is not None else []
        return read_condition(" and ".join(bounds + ([f"{column} < {self.max!r}"] if self.max is not None else [])))
