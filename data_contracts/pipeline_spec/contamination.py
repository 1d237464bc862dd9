"""`contract.contamination`: whether rows of one split may also be in another."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from data_contracts.pipeline_spec.base import FieldError, Shorthand


class NearSpec(Shorthand):
    """Texts that are almost equal: their sets of shingles (runs of characters) are compared by Jaccard similarity."""

    short_for: ClassVar[str] = "column"

    column: str
    """Column of texts."""
    similarity: float = Field(default=0.8, ge=0.5, le=1)
    """Shared shingles as a share of all shingles of two texts, from which on they are near duplicates; default 0.8."""
    shingle: int = Field(default=5, ge=1, le=32)
    """Characters of a shingle; default 5."""


class ContaminationSpec(Shorthand):
    """Rows that occur in two splits. They are compared as they are stored, after `shards.transform`."""

    short_for: ClassVar[str] = "on_found"

    on_found: Literal["reject", "drop", "warn"] = "reject"
    """What a row in two splits does: `reject` (default) ends the run, `drop` leaves out the copy in the split that is
    used earlier (train before val, val before test) and counts it, `warn` reports it."""
    columns: list[str] | None = Field(default=None, min_length=1)
    """Columns that make two rows the same; default: all but those of `label`, `ignore`, and `shards.split`, and
    `Unnamed: 0` of whole numbers."""
    ignore: list[str] = Field(default_factory=list)
    """Columns that do not count, such as a row's number; default none."""
    label: str | list[str] | None = None
    """Column or columns with the truth, which are not compared; default: the targets of `evaluate.metrics`, where they
    are columns."""
    on_conflict: Literal["reject", "warn"] = "warn"
    """What rows with the same columns and different labels do, in whichever splits: `warn` (default) or `reject`."""
    near: NearSpec | None = None
    """Also find near duplicates of a text column; default no."""

    @property
    def labels(self) -> list[str] | None:
        """The columns of `label`; None if the metrics' targets stand for it."""
        return [self.label] if isinstance(self.label, str) else self.label

    @model_validator(mode="after")
    def _consistent(self) -> ContaminationSpec:
        if self.columns is not None and self.ignore:
            raise FieldError("ignore", "has no effect beside columns; leave it out")
        both = [name for name in self.labels or [] if name in (self.columns or [])]
        if both:
            raise FieldError("label", f"names {both[0]!r}, which columns names, too; leave it out of one of them")
        return self
