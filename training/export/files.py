"""Writes the files of an export (tensors, a torch.export program or an ONNX model), and compares one with the
checkpoint.

None holds a row of the data, a path of this machine or a line of the user's source. A file's outputs are computed in a
fresh process without Trainwright.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from data_contracts.errors import GateNotMet, TrainwrightError, UserCodeError
from data_contracts.messages.commands import Agreement, Exported, TensorFacts, Tolerance
from data_contracts.quoting import describe, withhold
from infra import scratch
from infra.records.handoffs import plain_name
from training.export import fresh_run
from training.export.portable import Course, Untraceable

SAFETENSORS, TORCH, ONNX = "model.safetensors", "model.pt2", "model.onnx"
# A protobuf message may have 2 GiB; the graph needs some of it.
_INSIDE_BYTES = 2**30
# Metadata of nodes that quote the user's source and its path on this machine.
_QUOTES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


def write_tensors(module: nn.Module, folder: Path) -> tuple[int, int, list[str]]:
    """Write the parameters and buffers; returns their number, that of their values, and the names of tied tensors."""
    from safetensors.torch import save_file  # an environment of the user's may have none

    tensors: dict[str, Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    tied = []
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            continue
        place = (value.data_ptr(), value.storage_offset(), value.shape)
        if value.numel() and place in seen:
            tied.append(plain_name(name))
        seen.add(place)
        # A copy each: safetensors refuses tensors that share their memory.
        tensors[plain_name(name)] = value.detach().cpu().clone().contiguous()
    save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
    return len(tensors), sum(tensor.numel() for tensor in tensors.values()), tied


def pretrained_in(module: nn.Module) -> Any:
    """The library's model that a module holds, if it has a `save_pretrained` and all tensors of the module; else None.

    The models of transformers, diffusers and timm have one, and those that peft wraps.
    """
    model = next((part for part in module.modules() if hasattr(part, "save_pretrained")), None)
    own = {id(value) for value in (*model.parameters(), *model.buffers())} if model is not None else set()
    return model if all(id(value) in own for value in (*module.parameters(), *module.buffers())) else None


def write_pretrained(model: Any, folder: Path) -> Exported:
    """Write what the model's own `from_pretrained` loads; adapters of peft are merged into the weights first.

    Raises: UserCodeError if `from_pretrained` makes other tensors of the folder.
    """
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    model.save_pretrained(folder)
    loaded, state = type(model).from_pretrained(folder).state_dict(), model.state_dict()
    other = [name for name, value in state.items() if name not in loaded or not torch.equal(loaded[name].cpu(), value)]
    if other or len(loaded) != len(state):
        name = other[0] if other else next(name for name in loaded if name not in state)
        raise UserCodeError(
            f"{type(model).__name__}.from_pretrained makes another {name} of what its save_pretrained wrote.",
            remedy="Use versions of the library in which it does not, or `--to safetensors`.",
        )
    return Exported(
        files=sorted(path.name for path in folder.iterdir()),
        tensors=len(state),
        parameters=sum(value.numel() for value in state.values()),
        pretrained=f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}",
    )


def write_torch(program: ExportedProgram, folder: Path) -> None:
    """Write `model.pt2`, without the inputs of the trace."""
    for node in program.graph.nodes:
        for quoted in _QUOTES:
            node.meta.pop(quoted, None)
    program.example_inputs = None
    torch.export.save(program, folder / TORCH)


def write_onnx(
    program: ExportedProgram,
    example: dict[str, Tensor],
    course: Course,
    folder: Path,
    num_bytes: int,
) -> None:
    """Write `model.onnx`, and `model.onnx.data` beside it if the tensors have more than 1 GiB.

    Args:
        course: of the trace: it has the names of the outputs.
        num_bytes: of the module's tensors.

    Raises: Untraceable if ONNX has no form of an operation.
    """
    import onnx  # an environment of the user's may have none

    try:
        made: Any = torch.onnx.export(
            program,
            (example,),
            dynamo=True,
            input_names=list(example),
            output_names=course.names,
            verbose=False,
            optimize=True,
        )
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        raise _unconverted(error, course.places) from error
    for graph in (made.model.graph, *(function.graph for function in made.model.functions.values())):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
    path = folder / ONNX
    made.save(path, external_data=num_bytes > _INSIDE_BYTES)
    onnx.checker.check_model(str(path))


def _unconverted(error: Exception, places: Mapping[str, str]) -> UserCodeError:
    print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
    # Searched, never shown.
    text = "".join(traceback.format_exception_only(error))
    operation = re.search(r"OpOverload\(op='([\w.]+)'", text) or re.search(r"torch\.ops\.([\w.]+)", text)
    if operation is None:
        return Untraceable(f"The ONNX exporter failed: {describe(error)}.", remedy="Export it with --to torch.")
    name = operation[1]
    # A decomposition's name begins with an underscore; torch.linalg.svd is aten.linalg_svd.
    bare = name.rpartition(".")[2].lstrip("_")
    place = next((place for called, place in places.items() if called.replace(".", "_").endswith(bare)), "")
    return Untraceable(f"ONNX has no form of the operation {name}{place}.", remedy="Export it with --to torch.")


# By the type of an output. Whole numbers and truth values must be equal.
TOLERANCES = {
    "float64": Tolerance(atol=1e-9, rtol=1e-7),
    "float32": Tolerance(atol=1e-5, rtol=1e-4),
    "float16": Tolerance(atol=1e-3, rtol=1e-2),
    "bfloat16": Tolerance(atol=1e-2, rtol=2e-2),
}
EXACT = Tolerance(atol=0, rtol=0)
_REMEDY = "Export another format, or state the difference that you accept with --atol and --rtol."
# Loading torch on a busy machine takes long; a graph that computes for ever must not hang an export.
_LIMIT_S = 3600


def batches_of(num_rows: int) -> list[tuple[int, int]]:
    """Batches (from, to) of a sample: all rows, its first row, its last row, and some."""
    found = [(0, num_rows), (0, 1), (num_rows - 1, num_rows), (0, min(7, num_rows))]
    return list(dict.fromkeys(found))


def run_fresh(
    file: Path, kind: str, inputs: dict[str, Tensor], outputs: Sequence[str], batches: Sequence[tuple[int, int]]
) -> list[list[Any]]:
    """The file's outputs for each of the batches, as arrays, from a process that cannot import Trainwright.

    Raises: UserCodeError if the file does not run there.
    """
    with scratch.make("export") as folder:
        task = {"file": str(file), "format": kind, "inputs": list(inputs), "outputs": list(outputs)}
        (folder.path / "task.json").write_text(json.dumps({**task, "batches": list(batches)}))
        arrays: dict[str, Any] = {str(at): value.numpy() for at, value in enumerate(inputs.values())}
        np.savez(folder.path / "inputs.npz", **arrays)
        script = Path(fresh_run.__file__)
        done = subprocess.run(
            [sys.executable, "-I", "-W", "ignore", str(script), str(folder.path)],
            cwd=folder.path,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            print(done.stderr, file=sys.stderr, flush=True)
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            said = withhold(last.rstrip("."), "it failed")
            raise UserCodeError(
                f"The exported {file.name} does not run on rows of the data: {said}.",
                remedy="Export another format, or the weights alone (--to safetensors).",
            )
        with np.load(folder.path / "outputs.npz", allow_pickle=False) as made:
            return [[made[f"{number}-{at}"] for at in range(len(outputs))] for number in range(len(batches))]


def compare(
    name: str,
    expected: Sequence[list[Tensor]],
    found: Sequence[list[Any]],
    facts: Sequence[TensorFacts],
    tolerance: Tolerance | None,
) -> list[Agreement]:
    """How far each output is from the checkpoint's, over all batches.

    Args:
        name: of the exported file.
        expected, found: batch by batch, one tensor or array for each output.
        tolerance: of floating point outputs; None: by their type.

    Raises: GateNotMet naming the output that is furthest outside its tolerance.
    """
    assert facts, "an export without outputs agrees with everything"
    agreements, faults = [], []
    for at, output in enumerate(facts):
        floating = output.dtype in TOLERANCES
        allowed = (tolerance or TOLERANCES[output.dtype]) if floating else EXACT
        largest, outside = 0.0, 0.0
        for wanted, got in zip(expected, found, strict=True):
            difference, excess = _difference(wanted[at], got[at], allowed, output.name)
            largest, outside = max(largest, difference), max(outside, excess)
        agreements.append(Agreement(output=output.name, largest=largest, tolerance=allowed))
        if outside > 0:
            faults.append((outside, agreements[-1]))
    if faults:
        worst = max(faults, key=lambda fault: fault[0])[1]
        allowed = worst.tolerance
        raise GateNotMet(
            f"The output {worst.output} of {name} differs from the checkpoint's by up to {worst.largest:.3g}, "
            f"more than {allowed.atol:g} + {allowed.rtol:g} of its value.",
            remedy=_REMEDY,
            details={"output": worst.output, "largest": worst.largest, "tolerance": allowed.to_json()},
        )
    return agreements


def _difference(wanted: Tensor, got: Any, allowed: Tolerance, output: str) -> tuple[float, float]:
    """The largest difference, and by how much it is larger than allowed; infinite where one value is not finite."""
    here = np.asarray(wanted.detach().cpu().to(torch.float64) if wanted.is_floating_point() else wanted.detach().cpu())
    there = np.asarray(got)
    if here.shape != there.shape:
        raise GateNotMet(
            f"The output {output} has the shape {list(there.shape)} in the exported file, but {list(here.shape)} from "
            "the checkpoint.",
            remedy="Make the shape depend on the batch alone, or export the weights (--to safetensors).",
        )
    if not here.size:
        return 0.0, 0.0
    if here.dtype == bool or there.dtype == bool:
        here, there = here.astype(np.int8), there.astype(np.int8)
    with np.errstate(invalid="ignore"):
        difference = np.abs(there.astype(np.float64) - here.astype(np.float64))
    same = (here == there) | (np.isnan(here) & np.isnan(there))
    difference = np.where(same, 0.0, difference)
    difference = np.where(np.isnan(difference), np.inf, difference)
    limit = np.where(np.isfinite(here), allowed.atol + allowed.rtol * np.abs(here), 0.0)
    return float(difference.max()), float((difference - limit).max())


class Batches:
    """Batches as the Trainer takes them from a loader; a plain list would be several loaders."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def reference(trainer: Any, module: Any, batches: Sequence[Any]) -> list[Any]:
    """What the module returns for each batch, as evaluate gets it: from the Trainer's predict."""
    found = trainer.predict(module, dataloaders=Batches(batches))
    if not isinstance(found, list) or len(found) != len(batches):
        raise TrainwrightError("The Trainer did not predict every batch of the sample.")
    return found
