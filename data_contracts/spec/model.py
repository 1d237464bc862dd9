"""`train`, `evaluate` and `promote`: the Lightning module, how it is scored, and when it replaces the champion."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from data_contracts.canonical import Name
from data_contracts.spec.base import CallableSpec, DottedPath, FieldError, Section
from data_contracts.spec.data import Sources

Columns = str | list[str]


def _position(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# A position may be written as a number; it is kept as text, like a key.
Entry = Annotated[str, BeforeValidator(_position, json_schema_input_type=str | int)]


class SelectSpec(Section):
    """Which checkpoint train hands over: the best by a logged metric."""

    metric: str
    """Name as logged by the module."""
    mode: Literal["min", "max"]
    """Whether smaller or larger is better."""


class CheckpointingSpec(Section):
    """When a checkpoint is written and how many are kept."""

    every_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps between checkpoints; default: at the end of each epoch. The last step always has one."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest are kept besides the selected one; default 2."""


class BatchTransform(CallableSpec):
    """A function of the user's that maps a batch to a batch, or a sample to a sample."""

    per: Literal["batch", "sample"] = "batch"
    """What it is given: a `batch`, or each `sample`, which is slower; default batch."""


class MixtureSpec(Section):
    """Several kinds of rows, such as the sources that a dataset was made from, mixed by weight."""

    column: str
    """Column that says of which kind a row is."""
    weights: dict[str, float] = Field(min_length=1)
    """Value of the column → its share, to a thousandth of their sum; 0 leaves the kind out."""

    @field_validator("weights")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        for name, weight in weights.items():
            if not 0 <= weight < float("inf"):
                raise FieldError(name, f"must be a weight of 0 or more, got {weight:g}")
        kept = [weight for weight in weights.values() if weight]
        if not kept or min(kept) < sum(kept) / 1000:
            raise ValueError("must have a weight above 0, and none below a thousandth of their sum but 0")
        return weights


class LoaderSpec(Section):
    """How our loader orders, holds and hands over the rows. Memory and cache never change the order."""

    shuffle: Literal["global", "block"] = "global"
    """`global`: any row may come anywhere; `block`: blocks come in a random order, rows are shuffled within windows of
    blocks, so that data larger than memory and cache is read block by block; default global."""
    block_rows: int | None = Field(default=None, ge=1)
    """For `block`: rows of a block; default: each shard is one, which reads fastest."""
    window_blocks: int | None = Field(default=None, ge=1)
    """For `block`: blocks whose rows are shuffled together; default 4."""
    memory_bytes: int | None = Field(default=None, ge=2**20)
    """The most memory that rows take on one node, in bytes; default half of what is free."""
    cache_bytes: int | None = Field(default=None, ge=0)
    """The most disk space that decoded rows take on one node where memory is too small, in bytes; 0 for none; default
    half of what is free."""
    pad: dict[str, bool | int | float] = Field(default_factory=dict)
    """List column → value that fills its shorter rows up, which makes it one tensor; default none."""
    mixture: MixtureSpec | None = None
    """Rows of several kinds, by weight: each kind comes whole, again and again; default: all rows alike."""

    @property
    def window(self) -> int:
        """Blocks of a window."""
        return self.window_blocks or 4

    @property
    def result(self) -> dict[str, Any]:
        """The part that decides what is learned, as JSON."""
        return self.model_dump(mode="json", exclude={"memory_bytes", "cache_bytes"})

    @model_validator(mode="after")
    def _has_effect(self) -> LoaderSpec:
        for name in ("block_rows", "window_blocks"):
            if self.shuffle == "global" and getattr(self, name) is not None:
                raise FieldError(name, "has an effect with shuffle block alone; set it, or leave this out")
        if self.shuffle == "block" and self.mixture is not None:
            raise FieldError("mixture", "takes rows from anywhere, so it needs shuffle global")
        return self


class TrainSpec(Section):
    """The training. `strategy` and what the Lightning config says decide the result; nodes and devices do not."""

    lightning: str | dict[str, Any]
    """A LightningCLI config (`model`, `data`, `trainer`, `optimizer`, `lr_scheduler`): path of its YAML, or inline."""
    global_batch_size: int = Field(ge=1)
    """Rows per optimizer step, over all ranks."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """The most rows one device takes at once; default global / world size. Accumulation follows."""
    select: SelectSpec | None = None
    """Which checkpoint is handed over; default the last."""
    strategy: Literal["ddp", "fsdp", "single"] = "ddp"
    """`ddp` (a replica per rank), `fsdp` (parameters sharded over the ranks) or `single` (one rank)."""
    shard_modules: list[str] | int | None = None
    """For `fsdp`: class names of the modules to shard, or the least number of parameters of one; default the root."""
    batch: list[Columns] | dict[str, Columns] | None = None
    """How our loader hands a batch over: a tuple or dictionary of columns; a list of columns is stacked to one
    float tensor. Default: a dictionary of all columns."""
    transform: BatchTransform | None = None
    """Maps a batch to a batch when loading; default none."""
    loader: LoaderSpec = LoaderSpec()
    """How our loader orders, holds and hands over the rows."""
    launcher: Literal["local"] = "local"
    """Where nodes are started; `local`: as processes on this machine."""
    nodes: int = Field(default=1, ge=1)
    """Number of nodes; default 1."""
    devices: int = Field(default=1, ge=1)
    """Ranks per node; default 1."""
    machine: str = "local"
    """Entry of the machine catalogue whose price counts for a node; default `local`."""
    seed: int = 0
    """Seed of initialisation, dropout and sample order; default 0."""
    checkpoint: CheckpointingSpec = CheckpointingSpec()
    """When a checkpoint is written and how many are kept."""
    rollcall_timeout_s: float = Field(default=120, gt=0)
    """Seconds until every node must have answered; default 120."""
    collective_timeout_s: float = Field(default=300, gt=0)
    """Seconds until a collective that does not come back is a failure; default 300."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.devices

    @model_validator(mode="after")
    def _consistent(self) -> TrainSpec:
        ranks = f"train.nodes x train.devices = {self.world_size}"
        if self.strategy == "single" and self.world_size != 1:
            raise FieldError("strategy", f"single is one rank, but {ranks}; use ddp or fsdp, or one device")
        if self.global_batch_size % self.world_size:
            raise FieldError("global_batch_size", f"{self.global_batch_size} is not divisible by {ranks}")
        per_rank = self.global_batch_size // self.world_size
        if self.micro_batch_size and per_rank % min(self.micro_batch_size, per_rank):
            rows = f"{per_rank} rows of train.global_batch_size that a rank takes"
            raise FieldError("micro_batch_size", f"{self.micro_batch_size} does not divide the {rows}")
        if self.shard_modules is not None and self.strategy != "fsdp":
            raise FieldError("shard_modules", f"needs strategy fsdp, but it is {self.strategy}; leave it out")
        if isinstance(self.shard_modules, int) and self.shard_modules < 1:
            raise FieldError("shard_modules", f"must be at least 1 parameter, got {self.shard_modules}")
        return self


class MetricSpec(Section):
    """A metric: a torchmetrics class over `predict_step`, or a name that `test_step` logs."""

    class_path: DottedPath | None = None
    """torchmetrics class, such as `torchmetrics.classification.MulticlassAccuracy`."""
    init_args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments; default none."""
    target: Entry | None = None
    """With class_path: entry of the batch that holds the truth (key, or position in the tuple)."""
    prediction: Entry | None = None
    """With class_path: key of predict_step's output that holds the prediction, where it returns a dictionary."""
    logged: str | None = None
    """Instead of class_path: name that `test_step` logs."""
    mode: Literal["max", "min"]
    """Whether larger or smaller is better."""

    @model_validator(mode="after")
    def _one(self) -> MetricSpec:
        if (self.class_path is None) == (self.logged is None):
            raise ValueError("give either class_path or logged, and not both")
        if self.class_path is not None and self.target is None:
            raise FieldError("target", "is missing; name the entry of the batch that holds the truth (key or position)")
        return self


class SetSpec(Section):
    """One more named set to score: a split of the dataset, or rows of their own."""

    split: str | None = None
    """A split of the dataset, such as `val`."""
    source: Sources | None = None
    """Or raw files, put through the same shards settings, all rows scored."""

    @model_validator(mode="after")
    def _one(self) -> SetSpec:
        if (self.split is None) == (self.source is None):
            raise ValueError("give either split or source, and not both")
        return self


class EvaluateSpec(Section):
    """How a checkpoint is scored; every row counts once."""

    metrics: dict[str, MetricSpec] = Field(min_length=1)
    """Name → metric."""
    split: str = "test"
    """The split that metrics without a set's name speak of; default test."""
    sets: dict[Name, SetSpec] = Field(default_factory=dict)
    """More named sets; their metrics are `<set>/<metric>`; default none."""
    batch_size: int = Field(default=512, ge=1)
    """Rows per batch; part of the result only for logged metrics; default 512."""

    @field_validator("metrics")
    @classmethod
    def _no_slash(cls, metrics: dict[str, MetricSpec]) -> dict[str, MetricSpec]:
        for name in metrics:
            if "/" in name or not name:
                raise FieldError(name, "a metric's name must be text without '/', which stands for <set>/<metric>")
        return metrics


class GateSpec(Section):
    """One condition that a candidate must meet."""

    metric: str
    """A metric of `evaluate`, or `<set>/<metric>`."""
    min: float | None = None
    """Least value."""
    max: float | None = None
    """Largest value."""
    min_gain: float | None = None
    """Least gain over the champion on the same rows, in the metric's better direction; may be negative."""

    @model_validator(mode="after")
    def _one(self) -> GateSpec:
        if [self.min, self.max, self.min_gain].count(None) != 2:
            raise ValueError("give exactly one of min, max and min_gain")
        return self


class PromoteSpec(Section):
    """When the candidate replaces the champion."""

    model: Name | None = None
    """Name in the registry; default the pipeline's."""
    alias: Name = "champion"
    """Alias that moves; default `champion`."""
    gates: list[GateSpec] = Field(default_factory=list)
    """All must be met; default none: every candidate is promoted."""

    @field_validator("alias")
    @classmethod
    def _free(cls, alias: str) -> str:
        if alias == "history":
            raise ValueError("history cannot be an alias: the store keeps the receipts under that name; choose another")
        return alias
