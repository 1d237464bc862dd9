"""Traces a module with torch.export, and names the operation and the user's line if it cannot be traced."""

from __future__ import annotations

import functools
import linecache
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.overrides import TorchFunctionMode, resolve_name

from data_contracts.errors import TrainwrightError, UserCodeError
from data_contracts.messages.commands import TensorFacts
from data_contracts.quoting import describe
from training.export.portable import Inputs, Portable
from training.user.imports import raised_in_project, user_traceback

# Rows in a trace. More than one, and not a number that a module may have as the size of something else.
TRACE_ROWS = 5
# Operations that make the number of rows a constant of the graph.
_FIXES_ROWS = {"__len__", "__iter__", "unbind", "tolist", "__index__", "__int__"}
_REMEDY = "Rewrite this line with tensor operations, or export the weights alone (--to safetensors)."


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
    operations = _Operations(root)
    try:
        with torch.no_grad(), operations:
            return torch.export.export(portable, (_zeros(facts, TRACE_ROWS),), dynamic_shapes=(dynamic,), strict=False)
    except UserCodeError as error:
        # What `train.transform` raised is the user's, or torch's because it cannot be traced.
        if error.__cause__ is None:
            raise
        raise _untraceable(error.__cause__, operations, root) from error
    except (KeyboardInterrupt, TrainwrightError, MemoryError):
        raise
    except BaseException as error:
        raise _untraceable(error, operations, root) from error
    finally:
        found = {name: _in_words(*place, root) for name, place in operations.places.items()}
        portable.course.places = found


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


class _Operations(TorchFunctionMode):
    """Notes the operation that raised, and the first that fixes the number of rows, with the user's line.

    Attributes:
        last: operation, file and line of the last call; raising: of the innermost that raised.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = str(root)
        self.last: tuple[str, str, int] = ("", "", 0)
        self.raising: tuple[str, str, int] | None = None
        self.fixing: tuple[str, str, int] | None = None
        self.places: dict[str, tuple[str, int]] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = resolve_name(function) or getattr(function, "__name__", str(function))
        if not name.endswith(".__get__"):
            self.last = (name, *self._place())
            self.places.setdefault(name, self.last[1:])
            if self.fixing is None and name.rpartition(".")[2] in _FIXES_ROWS:
                self.fixing = self.last
        called = self.last
        try:
            return function(*args, **(kwargs or {}))
        except BaseException:
            self.raising = self.raising or called
            raise

    def _place(self) -> tuple[str, int]:
        """File and line of the innermost frame in the user's project; an operation without one keeps the last."""
        frame: Any = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.startswith(f"{self._root}/"):
            frame = frame.f_back
        return self.last[1:] if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _untraceable(error: BaseException, operations: _Operations, root: Path) -> UserCodeError:
    # Searched, never shown.
    text = "".join(traceback.format_exception_only(error))
    fixed = "Constraints violated" in text or "specialized" in text
    ours = isinstance(error, RuntimeError | NotImplementedError | torch._dynamo.exc.TorchDynamoException)
    if not ours and raised_in_project(error, root):
        return UserCodeError(
            f"The module raised {describe(error, root)} while it was traced with zeros.",
            user_traceback=user_traceback(error, root),
        )
    name, file, line = operations.raising or operations.last
    if fixed:
        name, file, line = operations.fixing or operations.last
        why = "it makes the number of rows a constant"
    elif "data-dependent" in text:
        why = "what is computed next depends on the values of the rows"
    else:
        why = describe(error, root)
    print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
    return Untraceable(f"torch.export cannot trace {name or 'the module'}{_in_words(file, line, root)}: {why}.")


def _in_words(file: str, line: int, root: Path) -> str:
    """A line of the user's as part of a sentence; "" for none."""
    return f" in {Path(file).relative_to(root)}:{line} (`{linecache.getline(file, line).strip()}`)" if file else ""
