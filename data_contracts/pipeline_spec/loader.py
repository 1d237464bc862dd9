"""`train.loader`: the order in which rows are read, how several kinds of rows are mixed, and what is cached."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from data_contracts.canonical import Name, valid_name
from data_contracts.pipeline_spec.base import FieldError, Section

# The run's own dataset among the datasets that are mixed.
OWN = "this"


def _dataset(reference: str) -> str:
    valid_name(reference.removeprefix("datasets/"))
    return reference


DatasetName = Annotated[str, AfterValidator(_dataset)]


class MixtureSpec(Section):
    """Rows mixed by weight: several kinds of rows in one dataset, or several datasets."""

    column: str | None = None
    """Column whose value is the kind of a row. Give this or `datasets`."""
    datasets: dict[Name, DatasetName] = Field(default_factory=dict)
    """Name → another dataset of the same store: its address (`datasets/…`), or the name of a pipeline for that
    pipeline's newest dataset. The run's own dataset is called `this`."""
    weights: dict[str, float] = Field(min_length=1)
    """Value of the column, or name of the dataset → its share. Shares are rounded to a thousandth of their sum; 0
    leaves a kind out."""

    @field_validator("weights")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        for name, weight in weights.items():
            if not 0 <= weight < float("inf"):
                raise FieldError(name, f"must be a weight of 0 or more, got {weight:g}")
        kept = [weight for weight in weights.values() if weight]
        if not kept or min(kept) < sum(kept) / 1000:
            raise ValueError("must have a weight above 0; each other weight is 0 or at least a thousandth of their sum")
        return weights

    @model_validator(mode="after")
    def _of_kinds_or_datasets(self) -> MixtureSpec:
        if (self.column is None) == (not self.datasets):
            raise ValueError("give either column or datasets, and not both")
        if OWN in self.datasets:
            raise FieldError(("datasets", OWN), "is the run's own dataset; give the other one another name")
        if self.datasets and {OWN, *self.datasets} != set(self.weights):
            raise FieldError("weights", f"must have {', '.join([OWN, *self.datasets])} and no others")
        return self


# The suffix that `pad` adds to a column's name to name the column of its lengths.
LENGTH = "_length"


class LoaderSpec(Section):
    """How Trainwright's loader orders and caches rows and makes batches. Memory and cache never change the order."""

    shuffle: Literal["global", "block"] = "global"
    """`global` (default): a random permutation of all rows. `block`: blocks in random order, rows shuffled within
    windows of blocks; for data larger than memory and cache."""
    block_rows: int | None = Field(default=None, ge=1)
    """For `block`: rows per block; default: each shard is a block, which reads fastest."""
    window_blocks: int | None = Field(default=None, ge=1)
    """For `block`: number of blocks whose rows are shuffled together; default 4."""
    memory_bytes: int | None = Field(default=None, ge=2**20)
    """Maximum memory for rows on one node, in bytes; default: half of the free memory."""
    cache_bytes: int | None = Field(default=None, ge=0)
    """Maximum disk space for decoded rows on one node, if memory is too small, in bytes; 0: no cache; default: half of
    the free space."""
    pad: dict[str, bool | int | float] = Field(default_factory=dict)
    """List column → value with which shorter rows are padded, so that the column becomes one tensor; default none."""
    mixture: MixtureSpec | None = None
    """Mixes several kinds of rows by weight; each kind is read in complete passes. Default: all rows have the same
    weight."""

    @property
    def window(self) -> int:
        """The number of blocks in a window."""
        return self.window_blocks or 4

    @property
    def result(self) -> dict[str, Any]:
        """The settings that decide what is learned, as JSON."""
        return self.model_dump(mode="json", exclude={"memory_bytes", "cache_bytes"})

    @model_validator(mode="after")
    def _has_effect(self) -> LoaderSpec:
        for name in ("block_rows", "window_blocks"):
            if self.shuffle == "global" and getattr(self, name) is not None:
                raise FieldError(name, "has an effect only with shuffle: block; set that, or leave this out")
        if self.shuffle == "block" and self.mixture is not None:
            raise FieldError("mixture", "takes rows from anywhere, so it needs shuffle global")
        return self
