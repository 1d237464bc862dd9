"""The module as it is exported: from a dataset's columns, as they are, to named outputs, and its graph by torch.export.

The graph makes the batch of its inputs, with the preprocessing that a batch gets. If a module cannot be traced, the
error names the operation and the user's line.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pyarrow as pa
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from data_contracts.errors import TrainwrightError, UsageError, UserCodeError
from data_contracts.messages.commands import TensorFacts
from data_contracts.quoting import describe
from training.formats import Shards
from training.formats.schema import pick, tensor_of, type_text
from training.loader.rows import Fixed, columns_of, names_of, numbers
from training.score.outcomes import NAME
from training.user.imports import raised_in_project, user_line, user_traceback
from training.user.ready import call_forward

Inputs = dict[str, Tensor]
Batch = Callable[[Inputs], Any]
# Rows in a trace. More than one, and not a number that a module may have as the size of something else.
TRACE_ROWS = 5
_REMEDY = "Rewrite this line with tensor operations, or export the weights alone (--to safetensors)."
# The largest sample, and the longest run of rows in it that follow each other.
SAMPLE = 256
RUN = 32


@dataclasses.dataclass
class Course:
    """What a call gave. torch.export puts a module's own attributes back after a trace, so they cannot tell.

    Attributes:
        names: of the outputs.
        left_out: parts of the step's result that are not tensors.
    """

    names: list[str] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)


class Portable(nn.Module):
    """Maps inputs, (rows, *) by name, to outputs by name, as Lightning's Trainer would call the module for a batch.

    Attributes:
        course: of the last call.
        absent: inputs on which the outputs do not depend: name → an input of no rows; zeros take their place.
    """

    def __init__(
        self,
        module: L.LightningModule,
        batch: Batch,
        transform: Callable[[Any], Any] | None,
        precision: Any,
        targets: Sequence[str],
        columns: Any = None,
    ) -> None:
        """`targets` and `columns` as in `call_forward`; the rest is what comes before the module's step."""
        super().__init__()
        self.module = module
        self.course = Course()
        self.absent: Inputs = {}
        self._batch, self._transform, self._precision = batch, transform, precision
        self._targets, self._columns = set(targets), columns

    @property
    def step(self) -> str:
        """The method that it calls, as evaluate chooses it: `predict_step` or `forward`."""
        return "predict_step" if is_overridden("predict_step", self.module, L.LightningModule) else "forward"

    def forward(self, inputs: Inputs) -> Inputs:
        """The outputs for these inputs."""
        batch = self._batch(inputs if not self.absent else self._completed(inputs))
        if self._transform is not None:
            batch = self._transform(batch)
        module, course = self.module, self.course
        batch = module.on_before_batch_transfer(batch, 0)
        batch = module.on_after_batch_transfer(batch, 0)
        batch = self._precision.convert_input(batch)
        with self._precision.forward_context():
            result = module.predict_step(batch, 0) if self.step == "predict_step" else self._called(batch)
        course.left_out = []
        outputs = named(result, course.left_out)
        outputs = {name if name not in inputs else f"output_{name}": value for name, value in outputs.items()}
        course.names = list(outputs)
        return outputs

    def _called(self, batch: Any) -> Any:
        return call_forward(self.module, batch, self._targets, self._columns)

    def _completed(self, inputs: Inputs) -> Inputs:
        first = next(iter(inputs.values()))
        rows = first.shape[0]
        zeros = {name: first.new_zeros((rows, *one.shape[1:]), dtype=one.dtype) for name, one in self.absent.items()}
        return {**inputs, **zeros}


def named(result: Any, left_out: list[str]) -> Inputs:
    """The tensors in what a step returned: a tensor is called `prediction`, others by their key, field or position.

    Args:
        left_out: gets the names of the parts that are not tensors.

    Raises: UserCodeError if there is no tensor.
    """
    found: Inputs = {}
    for path, value in _leaves(result, ""):
        if isinstance(value, Tensor):
            found[path or NAME] = value
        else:
            left_out.append(f"{path or NAME} ({type(value).__name__})")
    if not found:
        raise UserCodeError(
            f"The module returns a {type(result).__name__} without a tensor, so there is nothing to export.",
            remedy="Return a tensor, or a dictionary or tuple of tensors.",
        )
    return found


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        parts = [(str(key), one) for key, one in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = list(zip(value._fields, value, strict=True))
    elif isinstance(value, tuple | list):
        parts = [(str(at) if path else f"output_{at}", one) for at, one in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    else:
        return [(path, value)]
    return [leaf for key, one in parts for leaf in _leaves(one, f"{path}_{key}" if path else key)]


class Untraceable(UserCodeError):
    """torch.export cannot make a graph of the module."""

    default_remedy = _REMEDY


def traced(portable: Portable, facts: Sequence[TensorFacts], root: Path) -> tuple[ExportedProgram, list[TensorFacts]]:
    """The graph, for any number of rows, and the inputs that its outputs depend on.

    It is traced with zeros: no row of the data gets into a graph.

    Args:
        root: of the user's project, whose line an error names.

    Raises:
        Untraceable: names the operation.
        UserCodeError: the user's code raised.
    """
    program = _graph(portable, facts, root)
    used = _used(program, [one.name for one in facts])
    kept = [one for one in facts if one.name in used] or list(facts[:1])
    if len(kept) < len(facts):
        absent = _zeros([one for one in facts if one not in kept], rows=0)
        portable.absent = absent
        program = _graph(portable, kept, root)
    return program, kept


def outputs_of(program: ExportedProgram, names: Sequence[str]) -> list[TensorFacts]:
    """Names, types and shapes of a graph's outputs; a size that varies is `rows` or has no name of its own (`?`)."""
    node = program.graph.output_node()
    values = [one.meta["val"] for one in node.args[0]]
    outputs = values[len(values) - len(names) :]
    rows = _rows_symbol(program)
    return [
        TensorFacts(
            name=name, dtype=str(one.dtype).removeprefix("torch."), shape=[_size(size, rows) for size in one.shape]
        )
        for name, one in zip(names, outputs, strict=True)
    ]


def _graph(portable: Portable, facts: Sequence[TensorFacts], root: Path) -> ExportedProgram:
    dynamic = {
        one.name: {at: _dim(size) for at, size in enumerate(one.shape) if isinstance(size, str)} for one in facts
    }
    try:
        with torch.no_grad():
            return torch.export.export(portable, (_zeros(facts, TRACE_ROWS),), dynamic_shapes=(dynamic,), strict=False)
    except UserCodeError as error:
        # What `train.transform` raised is the user's, or torch's because it cannot be traced.
        if error.__cause__ is None:
            raise
        raise _untraceable(error.__cause__, root) from error
    except (KeyboardInterrupt, TrainwrightError, MemoryError):
        raise
    except BaseException as error:
        raise _untraceable(error, root) from error


@functools.cache
def _dim(name: str) -> Any:
    return Dim(name)


def _zeros(facts: Sequence[TensorFacts], rows: int) -> Inputs:
    # Sizes that vary, but for the rows, are another number in the trace.
    sizes = {"rows": rows}
    return {
        one.name: torch.zeros(
            [sizes.setdefault(size, 7) if isinstance(size, str) else size for size in one.shape],
            dtype=getattr(torch, one.dtype),
        )
        for one in facts
    }


def _used(program: ExportedProgram, names: Sequence[str]) -> set[str]:
    """The inputs that an output depends on."""
    waiting = [program.graph.output_node()]
    seen = set(waiting)
    while waiting:
        more = set(waiting.pop().all_input_nodes) - seen
        seen |= more
        waiting += more
    reached = {node.name for node in seen}
    return {name for name, place in zip(names, program.graph_signature.user_inputs, strict=True) if place in reached}


def _rows_symbol(program: ExportedProgram) -> Any:
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in program.graph_signature.user_inputs and node.meta["val"].ndim:
            return node.meta["val"].shape[0]
    return None


def _size(size: Any, rows: Any) -> int | str:
    if isinstance(size, int):
        return size
    return "rows" if str(size) == str(rows) else "?"


def _untraceable(error: BaseException, root: Path) -> UserCodeError:
    # Searched, never shown.
    text = "".join(traceback.format_exception_only(error))
    if not isinstance(error, RuntimeError | NotImplementedError) and raised_in_project(error, root):
        return UserCodeError(
            f"The module raised {describe(error, root)} while it was traced with zeros.",
            user_traceback=user_traceback(error, root),
        )
    if "Constraints violated" in text or "specialized" in text:
        why = "it makes the number of rows a constant, as `len` and loops over rows do"
    elif "data-dependent" in text:
        why = "what is computed next depends on the values of the rows"
    else:
        why = describe(error, root)
    print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
    return Untraceable(f"torch.export cannot trace the module{user_line(error, root)}: {why}.")


class NotTensors(UsageError):
    """A batch holds something that cannot be an input of a graph."""

    default_remedy = (
        "Pad the column (train.loader.pad), make tensors in train.transform, or export the weights alone (--to "
        "safetensors)."
    )


@dataclass(frozen=True)
class Entry:
    """One entry of a batch: columns that are stacked, or one column in the loader's type."""

    columns: tuple[str, ...]
    stacked: bool
    dtype: torch.dtype

    def made(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The entry, as the loader makes it: (rows, columns) or (rows, *shape)."""
        parts = [inputs[name].to(self.dtype) for name in self.columns]
        return torch.stack(parts, 1) if self.stacked else parts[0]


@dataclass(frozen=True)
class Columns:
    """Makes a batch of a dataset's columns, as `train.batch` says.

    Attributes:
        keys: of the batch; None: it is a tuple.
        facts: of the inputs, one for each column that is read.
    """

    keys: Sequence[str] | None
    entries: Sequence[Entry]
    facts: Sequence[TensorFacts]

    def batch(self, inputs: Mapping[str, Tensor]) -> Any:
        """The batch of these inputs, by column."""
        made = [entry.made(inputs) for entry in self.entries]
        return tuple(made) if self.keys is None else dict(zip(self.keys, made, strict=True))


def columns_in(schema: pa.Schema, train: Mapping[str, Any]) -> Columns | None:
    """The columns that a batch is made of; None if one of them is not a tensor of the same shape in each row."""
    pad = (train.get("loader") or {}).get("pad", {})
    keys, columns = columns_of(schema, train.get("batch"), pad)
    if not columns or not all(isinstance(one, Fixed) for one in columns):
        return None
    fields = {name: pick(schema, [name]).field(0) for name in names_of(columns)}
    facts = [_facts(field) for field in fields.values()]
    shapes = {one.name: one.shape[1:] for one in facts}
    entries = [
        Entry(one.columns, list(one.shape) != shapes[one.columns[0]], torch.from_numpy(np.empty(0, one.dtype)).dtype)
        for one in columns
        if isinstance(one, Fixed)
    ]
    return Columns(keys, entries, facts)


def _facts(field: pa.Field) -> TensorFacts:
    tensor = tensor_of(field)
    dtype, shape = (tensor[0].name, tensor[1]) if tensor is not None else (_dtype(field.type), ())
    return TensorFacts(name=field.name, dtype=dtype, shape=["rows", *shape], column=type_text(field))


def _dtype(kind: pa.DataType) -> str:
    """NumPy's name of a column's type, as `training.loader.rows.numbers` reads it."""
    if pa.types.is_temporal(kind):
        return "int32" if kind.bit_width == 32 else "int64"
    return "float64" if pa.types.is_decimal(kind) else np.dtype(kind.to_pandas_dtype()).name


def sampled(num_rows: int) -> list[tuple[int, int]]:
    """Runs (from, to) of rows that are spread over all rows, the first and the last among them; at most SAMPLE rows."""
    if num_rows <= SAMPLE:
        return [(0, num_rows)]
    starts = np.linspace(0, num_rows - RUN, SAMPLE // RUN).astype(int).tolist()
    runs: list[tuple[int, int]] = []
    for start in starts:
        begin = max(start, runs[-1][1] if runs else 0)
        runs.append((begin, start + RUN))
    return runs


def read_columns(shards: Shards, facts: Sequence[TensorFacts], runs: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """The values of these rows, by column, in the dataset's own types."""
    names = [one.name for one in facts]
    starts = np.cumsum([0, *shards.rows]).tolist()
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for first, end in runs:
        for number, start in enumerate(starts[:-1]):
            begin, stop = max(first, start), min(end, starts[number + 1])
            for table in shards.tables(number, names, begin - start, stop - start) if begin < stop else ():
                for name in names:
                    parts[name].append(np.array(numbers(table, name)))
    return {one.name: torch.from_numpy(np.concatenate(parts[one.name])) for one in facts}


def flattened(batch: Any, columns: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors in a batch by name, and what puts them together again.

    Args:
        columns: the spec's `train.batch`, whose columns name the entries of a tuple.

    Raises: NotTensors if the batch holds anything else.
    """
    paths, spec = pytree.tree_flatten_with_path(batch)
    found: dict[str, Tensor] = {}
    for path, value in paths:
        name = "_".join(_part(key, columns if len(path) == 1 else None) for key in path) or "input"
        if not isinstance(value, Tensor):
            raise NotTensors(
                f"The model cannot be exported: the entry {name} of a batch is a {type(value).__name__}, not a tensor."
            )
        found[name if name not in found else f"{name}_{len(found)}"] = value
    return found, spec


def _part(key: Any, columns: Any) -> str:
    at = getattr(key, "idx", None)
    if at is None:
        return str(getattr(key, "key", getattr(key, "name", key)))
    named = columns[at] if isinstance(columns, list) and at < len(columns) else None
    return named if isinstance(named, str) else f"input_{at}"
