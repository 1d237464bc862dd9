"""`train`: the Lightning module, its initial weights, the machines and how the ranks share the work.

Ranks form a mesh: replicas of the parameters, and ranks over which each replica is sharded. `train.loader` is the order
in which rows are read, how several kinds of rows are mixed, and what is cached. `code` and `environment` are the files
that are packed for the nodes beside a project's modules, and their packages.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from data_contracts.canonical import Name, valid_name
from data_contracts.pipeline_spec.base import CallableSpec, FieldError, Placed, Section, Shorthand, check_one_of
from data_contracts.pipeline_spec.data import StorageOptions, Uri

SHARDED = ("fsdp", "hsdp")
# The run's own dataset among the datasets that are mixed.
OWN = "this"
# The suffix that `pad` adds to a column's name to name the column of its lengths.
LENGTH = "_length"
_STORED = re.compile(r"trainings/[a-z0-9][a-z0-9._-]*/checkpoints/\d+-g\d+")
_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}@[a-z0-9][a-z0-9._-]{0,62}")
_DIGEST = re.compile(r"(sha256|blake3):[0-9a-f]{64}")


def mesh_of(strategy: str, shard_ranks: int, world_size: int) -> tuple[int, int]:
    """Replicas, and ranks of each. On a smaller gang a replica takes more ranks rather than fewer, so that it still
    fits.

    Args:
        shard_ranks: for `hsdp`: ranks that a replica takes if the ranks divide evenly.
    """
    if strategy not in SHARDED:
        return world_size, 1
    least = world_size if strategy == "fsdp" else min(shard_ranks, world_size)
    shard = next(ranks for ranks in range(least, world_size + 1) if world_size % ranks == 0)
    return world_size // shard, shard


def is_hsdp(nodes: int, devices: int, shard_ranks: int | None = None) -> bool:
    """Whether these ranks form several replicas of the parameters, each sharded over several ranks."""
    return min(mesh_of("hsdp", shard_ranks or devices, nodes * devices)) > 1


def check_mesh(strategy: str, shard_ranks: int | None, nodes: int, devices: int) -> None:
    """FieldError if the ranks do not form a mesh of the strategy."""
    world_size = nodes * devices
    ranks = f"train.nodes x train.devices = {world_size}"
    if strategy != "hsdp":
        if shard_ranks is not None:
            raise FieldError("shard_ranks", f"needs strategy hsdp, but it is {strategy}; leave it out")
        return
    shard, how = (shard_ranks, "train.shard_ranks") if shard_ranks else (devices, "train.devices")
    if world_size % shard:
        raise FieldError("shard_ranks", f"{shard} does not divide {ranks}; it is the number of ranks in a replica")
    if shard == world_size:
        sentence = f"hsdp needs two replicas, but {how} {shard} leaves one on {ranks}; use fsdp"
        raise FieldError("strategy", f"{sentence}, or set a smaller train.shard_ranks")
    if shard == 1:
        raise FieldError("strategy", f"hsdp shards a replica, but {how} is 1; use ddp, or set train.shard_ranks")


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
        check_one_of(self, "column", "datasets")
        if OWN in self.datasets:
            raise FieldError(("datasets", OWN), "is the run's own dataset; give the other one another name")
        if self.datasets and {OWN, *self.datasets} != set(self.weights):
            raise FieldError("weights", f"must have {', '.join([OWN, *self.datasets])} and no others")
        return self


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
    def result(self) -> dict[str, object]:
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


def _below_the_root(pattern: str) -> str:
    path = PurePosixPath(pattern)
    if not pattern.strip() or path.is_absolute() or ".." in path.parts or "\\" in pattern or not path.parts:
        raise ValueError(f"{pattern!r} must be a path or glob below the project's root, with '/' and without '..'")
    return str(path)


Pattern = Annotated[str, AfterValidator(_below_the_root)]


class CodeSpec(Section):
    """Further files of the project to pack into the code bundle."""

    include: list[Pattern] = Field(default_factory=list)
    """Paths, folders or globs below the project's root that are also packed and count as code; default none. A data
    source, a link that leaves the project or a file named like a secret needs its exact path."""


class PackagesSpec(Section):
    """Which releases of packages may be installed."""

    min_age_days: int = Field(ge=1, le=3650)
    """Refuse files that were uploaded fewer days ago, by the index's upload times; one without a time is refused."""


class EnvironmentSpec(Shorthand):
    """The packages that your code needs, installed on every machine that imports it; a plain string is short for
    `file`.
    """

    short_for: ClassVar[str] = "file"

    file: Annotated[str, Field(min_length=1)]
    """A file of requirements, relative to the spec's folder."""
    build: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]] = Field(
        default_factory=list
    )
    """Names of packages that are built from source, which runs their code; others come as wheels. Default none."""
    wheels: str | None = None
    """Folder of wheels, relative to the spec's folder, that this machine installs from instead of an index; other
    machines use their own configuration. Default: the indexes that uv or pip is configured to use."""
    packages: PackagesSpec | None = Field(default=None, exclude_if=lambda packages: packages is None)
    """Which releases may be installed; default: all."""

    @model_validator(mode="after")
    def _has_upload_times(self) -> Self:
        if self.packages is not None and self.wheels is not None:
            raise FieldError("wheels", "has no upload times, which packages.min_age_days needs; leave one of them out")
        return self


Columns = str | list[str]


class InitSpec(Shorthand):
    """The weights that a training begins with; a plain string is short for `weights`."""

    short_for: ClassVar[str] = "weights"

    weights: Uri
    """A verified checkpoint of the store (`trainings/…/checkpoints/…`), a model (`digits@champion`, `digits@3`), or the
    path or `s3://` address of a safetensors file, or of a folder of them."""
    digest: str | None = None
    """For files from outside the store: `sha256:…` or `blake3:…` of the file; for a folder, of the list of its files as
    sha256sum or b3sum prints it."""
    strict: bool = True
    """true (default): names and shapes must be those of the module. false: the tensors that fit are loaded, and the log
    names the others."""
    storage_options: StorageOptions = Field(default_factory=dict)
    """For `s3://`: options of s3fs. Credentials are named (`env:NAME`, `profile:NAME`), never written here."""

    @property
    def source(self) -> Literal["checkpoint", "model", "outside"]:
        """The kind that `weights` names; a file whose path looks like another kind is written `./…`."""
        if _STORED.fullmatch(self.weights):
            return "checkpoint"
        return "model" if _MODEL.fullmatch(self.weights) else "outside"

    @model_validator(mode="after")
    def _proven(self) -> InitSpec:
        outside = self.source == "outside"
        if outside and self.digest is None:
            raise FieldError("digest", "is missing; weights from outside need it (sha256:… or blake3:…)")
        if not outside and self.digest is not None:
            raise FieldError("digest", "has an effect only on weights from outside; leave it out")
        if self.digest is not None and not _DIGEST.fullmatch(self.digest):
            raise FieldError("digest", "must be sha256: or blake3: and 64 hexadecimal digits in lower case")
        return self


class SelectSpec(Section):
    """Chooses the checkpoint that train hands over: the best by a logged metric."""

    metric: str
    """Name under which the module logs the metric."""
    mode: Literal["min", "max"]
    """Whether smaller or larger is better."""


class CheckpointingSpec(Shorthand):
    """When a checkpoint is written and how many are kept; `auto` is short for `every_s: auto`."""

    short_for: ClassVar[str] = "every_s"

    every_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps between checkpoints; default: at the end of each epoch. The last step always has one."""
    every_s: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        default=None, exclude_if=lambda every_s: every_s is None
    )
    """Least seconds between checkpoints, or `auto`: those that lose least. Default: by steps or epochs alone. With
    `every_steps`, whichever comes first."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest checkpoints are kept besides the selected one; default 2."""


class BatchTransform(CallableSpec):
    """A function of yours that maps a batch to a batch, or a sample to a sample."""

    per: Literal["batch", "sample"] = "batch"
    """The function's argument: a `batch`, or one `sample` at a time, which is slower; default batch."""


class TrainRecipe(Section):
    """What decides the result of a training."""

    lightning: str | dict[str, object]
    """A LightningCLI config (`model`, `data`, `trainer`, `optimizer`, `lr_scheduler`): a YAML file's path, or
    inline."""
    global_batch_size: int = Field(ge=1)
    """Rows per optimizer step, over all ranks."""
    select: SelectSpec | None = None
    """Which checkpoint is handed over to verify; default the last."""
    strategy: Literal["ddp", "fsdp", "hsdp", "single"] = "ddp"
    """`ddp` (a replica per rank), `fsdp` (parameters sharded over the ranks), `hsdp` (sharded within a node, a replica
    per node) or `single` (one rank)."""
    shard_modules: list[str] | int | None = None
    """For `fsdp` and `hsdp`: class names of the modules to shard, or a number of parameters from which a module is
    sharded; default: the root module alone."""
    batch: list[Columns] | dict[str, Columns] | None = None
    """What a batch contains: a tuple or dictionary of columns; a list of columns is stacked into one float tensor.
    Default: a dictionary of all columns."""
    transform: BatchTransform | None = None
    """A function of yours, applied to each batch when it is loaded; default none."""
    init_from: InitSpec | None = None
    """The initial weights; default: those that the module makes."""
    loader: LoaderSpec = LoaderSpec()
    """How Trainwright's loader orders and caches rows and makes batches."""
    seed: int = 0
    """Seed of initialisation, dropout and sample order; default 0."""
    checkpoint: CheckpointingSpec = CheckpointingSpec()
    """When a checkpoint is written and how many are kept."""

    @property
    def recipe(self) -> dict[str, Any]:
        """These settings as JSON, without those parts of them that change no result."""
        written = self.model_dump(mode="json", include=set(TrainRecipe.model_fields))
        return {**written, "checkpoint": {"every_steps": self.checkpoint.every_steps}, "loader": self.loader.result}


class TrainPlacement(Placed):
    """Where a training is carried out, how its ranks share it, and when it counts as failed."""

    nodes: int = Field(default=1, ge=1)
    """Number of nodes; default 1."""
    min_nodes: int | None = Field(default=None, ge=1)
    """The smallest number of nodes with which training continues when some are lost; default: all nodes."""
    devices: int = Field(default=1, ge=1)
    """Ranks per node; default 1."""
    machine: str = "local"
    """Entry of the price book that gives a node's price and memory; default: the pool's entry, else `local`."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Maximum rows that a device takes at once; gradient accumulation makes up the rest. Default: global batch /
    ranks."""
    shard_ranks: int | None = Field(default=None, ge=2)
    """For `hsdp`: ranks over which a replica is sharded; default: the devices of a node."""
    rollcall_timeout_s: float = Field(default=120, gt=0)
    """Seconds within which every node must answer the roll-call; default 120."""
    collective_timeout_s: float = Field(default=300, gt=0)
    """Seconds after which a collective operation that has not returned is a failure; default 300."""
    hang_timeout_s: float = Field(default=45, gt=0)
    """Seconds without progress after which a rank is hung; default 45. Ten times the slowest step applies if that is
    longer, and half an hour before the first step, in hooks between epochs and while a checkpoint is saved."""
    spike_factor: float | None = Field(default=None, gt=1)
    """A loss above this multiple of its running mean counts as diverged; default: only a loss that is not finite
    does."""


class TrainSpec(TrainPlacement, TrainRecipe):
    """The training. `strategy` and the Lightning config decide the result; nodes and devices do not."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.devices

    @property
    def least_nodes(self) -> int:
        """The smallest number of nodes with which the training continues."""
        return self.min_nodes or self.nodes

    @property
    def sharded(self) -> bool:
        """Whether ranks hold parts of the parameters."""
        return self.strategy in SHARDED

    def mesh(self, world_size: int) -> tuple[int, int]:
        """Replicas of the parameters, and ranks over which each is sharded, for `world_size` ranks."""
        return mesh_of(self.strategy, self.shard_ranks or self.devices, world_size)

    @property
    def batch_columns(self) -> set[str] | None:
        """The columns in a batch; None for all."""
        return self.columns_in(self.batch)

    @staticmethod
    def columns_in(batch: list[Columns] | dict[str, Columns] | None) -> set[str] | None:
        """The columns in a batch as `train.batch` writes it; None for all."""
        if batch is None:
            return None
        entries = batch if isinstance(batch, list) else batch.values()
        return {column for entry in entries for column in ([entry] if isinstance(entry, str) else entry)}

    @model_validator(mode="after")
    def _consistent(self) -> TrainSpec:
        ranks = f"train.nodes x train.devices = {self.world_size}"
        if self.strategy == "single" and self.world_size != 1:
            raise FieldError("strategy", f"single is one rank, but {ranks}; use ddp or fsdp, or one device")
        if self.global_batch_size % self.world_size:
            raise FieldError("global_batch_size", f"{self.global_batch_size} is not divisible by {ranks}")
        self._check_micro_batch(self.world_size)
        self._check_placement()
        if self.shard_modules is not None and not self.sharded:
            raise FieldError("shard_modules", f"needs strategy fsdp or hsdp, but it is {self.strategy}; leave it out")
        if isinstance(self.shard_modules, int) and self.shard_modules < 1:
            raise FieldError("shard_modules", f"must be at least 1 parameter, got {self.shard_modules}")
        check_mesh(self.strategy, self.shard_ranks, self.nodes, self.devices)
        return self

    def _check_micro_batch(self, world_size: int, when: str = "") -> None:
        per_rank = self.global_batch_size // world_size
        if self.micro_batch_size and per_rank % min(self.micro_batch_size, per_rank):
            rows = f"{per_rank} rows of train.global_batch_size that a rank takes{when}"
            raise FieldError("micro_batch_size", f"{self.micro_batch_size} does not divide the {rows}")

    def _check_placement(self) -> None:
        if self.least_nodes > self.nodes:
            raise FieldError("min_nodes", f"{self.min_nodes} is more than train.nodes = {self.nodes}")
        least = self.least_nodes * self.devices
        if self.global_batch_size % least:
            ranks = f"train.min_nodes x train.devices = {least}"
            raise FieldError("min_nodes", f"{ranks} does not divide global_batch_size = {self.global_batch_size}")
        self._check_micro_batch(least, " with train.min_nodes")
