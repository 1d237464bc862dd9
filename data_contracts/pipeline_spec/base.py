"""What sections of the spec share: their base classes and types, and where the work of a section is done.

`launcher` and its fields place the work of train, verify and evaluate; the place does not affect the result. The runner
(`shards.runner`, `contract.runner`) does the work on raw rows.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import operator
import re
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

# What `pool` names, by launcher.
POOLS = {
    "work-pool": "the name of a Prefect work pool",
    "slurm": "the name of a partition",
    "ssh": "a file of hosts",
    "kubernetes": "a namespace",
}
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
_SCHEDULER = re.compile(r"(tcp|tls)://[^/@\s]+:\d{1,5}")


def is_none(value: object) -> bool:
    """Whether a field is left out of the JSON of its section, whose digest then stays as before there was the field."""
    return value is None


class FieldError(ValueError):
    """A rule between fields is broken; the error of `load_spec` names `field` (a path below the section)."""

    def __init__(self, field: str | tuple[str | int, ...], sentence: str) -> None:
        self.field = (field,) if isinstance(field, str) else field
        self.sentence = sentence
        super().__init__(f"{'.'.join(map(str, self.field))}: {sentence}")


def check_one_of(section: BaseModel, first: str, second: str) -> None:
    """ValueError unless exactly one of two fields is given."""
    if [getattr(section, name) in (None, {}) for name in (first, second)].count(True) != 1:
        raise ValueError(f"give either {first} or {second}, and not both")


def each_once(names: list[str]) -> list[str]:
    """`names`, if none of them stands twice; else ValueError."""
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise ValueError(f"names {' and '.join(twice)} twice; name each once")
    return names


def dotted_path(text: str) -> str:
    """`text`, if it is a dotted path to an object in a module (`module.name`); else ValueError."""
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{text!r} is not a dotted path; write it as module.name")
    return text


DottedPath = Annotated[str, AfterValidator(dotted_path)]


@cache
def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What stands below each field of a section in its source; read when it is asked for, not at each import."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is BaseModel or not issubclass(base, BaseModel):
            continue
        [section] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(section, ast.ClassDef)
        for field, below in itertools.pairwise(section.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and (text := _text(below)):
                found[field.target.id] = inspect.cleandoc(text)
    return found


def _text(statement: ast.stmt) -> str | None:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


class Section(BaseModel):
    """A frozen section of the spec; unknown keys are refused, and so is text where a number is wanted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(schema)
        properties = handler.resolve_ref_schema(whole).get("properties", {})
        for name, text in descriptions(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return whole


class Shorthand(Section):
    """A section that a plain string may stand for: it is then the value of the field `short_for`."""

    short_for: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {cls.short_for: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(schema, handler))
        text = {"type": "string", "description": f"Short for `{cls.short_for}`."}
        return {"title": whole.get("title"), "description": whole.get("description"), "anyOf": [text, whole]}


class CallableSpec(Shorthand):
    """A function of yours, named `module.function`; a mapping adds keyword arguments."""

    short_for: ClassVar[str] = "call"

    call: DottedPath
    """Dotted path of the function, imported from the project's root."""
    args: dict[str, object] = Field(default_factory=dict)
    """Keyword arguments, passed after the batch; default none."""


class Placed(Section):
    """A section whose work is done on this machine, or on nodes elsewhere."""

    launcher: Literal["local", "work-pool", "slurm", "ssh", "kubernetes"] = "local"
    """Where processes start. `local`: on this machine; `work-pool`: each node as a flow run on a Prefect work pool;
    `slurm`: all nodes as one job of Slurm; `ssh`: each node on a host that `ssh` reaches; `kubernetes`: all nodes as
    the pods of one JobSet."""
    pool: str | None = None
    """For `work-pool`: the name of the Prefect work pool; for `slurm`: of the partition; for `ssh`: a file of hosts, a
    line for each, such as `gpu-7 slots=2`; for `kubernetes`: a namespace."""
    queue: str | None = Field(default=None, exclude_if=is_none)
    """For `work-pool`: a queue of the pool; for `slurm`: a quality of service; for `kubernetes`: a LocalQueue of Kueue.
    Default: the pool's, or the user's, or no queue."""
    job_variables: dict[str, str | int | float | bool] = Field(default_factory=dict, exclude_if=operator.not_)
    """For `work-pool`: job variables of the pool's template; for `slurm`: long options of `sbatch`, such as
    `{account: vision, time: "12:00:00"}`; for `kubernetes`: what its pods need, of which `image` is required. Default
    none."""

    @model_validator(mode="after")
    def _has_its_pool(self) -> Placed:
        if self.launcher != "local" and not self.pool:
            raise FieldError("pool", f"is missing; launcher {self.launcher} needs {POOLS[self.launcher]}")
        if self.launcher == "local" and self.pool is not None:
            raise FieldError("pool", f"has an effect only with launcher: {' or '.join(POOLS)}; leave it out")
        for name in ("queue", "job_variables") if self.launcher in ("local", "ssh") else ():
            if getattr(self, name):
                raise FieldError(name, f"has no effect with launcher: {self.launcher}; leave it out")
        return self


def in_same_place(section: Placed, other: Placed) -> bool:
    """Whether two sections' work is done on the same kind of machine: both here, or both in the same pool."""
    return (section.launcher, section.pool) == (other.launcher, other.pool)


class Spread(Placed):
    """A section whose work several ranks may share; that does not affect the result either."""

    nodes: int | None = Field(default=None, ge=1, exclude_if=lambda nodes: nodes is None)
    """Number of nodes; default 1. For `fsdp` and `hsdp`, if neither `nodes` nor `devices` is set: as trained."""
    devices: int | None = Field(default=None, ge=1, exclude_if=lambda devices: devices is None)
    """Ranks per node; default 1. For `fsdp` and `hsdp`, if neither `nodes` nor `devices` is set: as trained."""
    strategy: Literal["ddp", "fsdp", "hsdp", "single"] | None = Field(
        default=None, exclude_if=lambda strategy: strategy is None
    )
    """How the ranks hold the parameters, as in `train.strategy`. Default: as trained, but several ranks use `ddp`
    instead of `single`, and `fsdp` instead of `hsdp` if they are too few for it."""

    @model_validator(mode="after")
    def _meshes(self) -> Spread:
        ranks = (self.nodes or 1) * (self.devices or 1)
        if self.strategy == "single" and ranks > 1:
            raise FieldError("strategy", f"single is one rank, but nodes x devices = {ranks}; use ddp or fsdp")
        return self

    @property
    def has_counts(self) -> bool:
        """Whether `nodes` or `devices` is set."""
        return self.nodes is not None or self.devices is not None


class VerifySpec(Spread):
    """How a checkpoint is verified: where, and on how many ranks."""


class DaskRunner(Section):
    """A Dask cluster that does the work of a stage."""

    dask: str
    """Address of the scheduler, such as tcp://scheduler:8786."""
    scratch: str
    """Absolute path of a folder that this machine and every worker share; it holds pieces of work, and the rows that
    the shard stage spills."""

    @model_validator(mode="after")
    def _named_for_all_machines(self) -> DaskRunner:
        if not _SCHEDULER.fullmatch(self.dask):
            sentence = f"must be the address of a Dask scheduler such as tcp://scheduler:8786, got {self.dask!r}"
            raise FieldError("dask", sentence)
        if not self.scratch.startswith("/"):
            raise FieldError("scratch", f"must be an absolute path, the same on every machine, got {self.scratch!r}")
        return self


Runner = Literal["local"] | DaskRunner


def run_locally(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of a spec, with `local` as the runner of each section that has one."""
    sections = {name: {**spec[name], "runner": "local"} for name in ("contract", "shards") if spec.get(name)}
    return {**spec, **sections}
