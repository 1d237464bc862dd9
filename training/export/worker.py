"""The child process that exports a checkpoint: it loads the module, traces it, writes the file and compares outputs.

Run as `python -m training.export.worker REQUEST ANSWER` by `infra.child`. The file (tensors, a torch.export program or
an ONNX model) holds no row of the data, no path of this machine and no line of the user's source. Its outputs are
computed in a fresh process without Trainwright.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from data_contracts.errors import GateNotMet, UsageError, UserCodeError
from data_contracts.messages.commands import EXPORT, Agreement, Exported, ExportRequest, TensorFacts, Tolerance
from data_contracts.quoting import describe, withhold
from infra import scratch
from infra.processes.child_main import Report, child_main
from infra.records.handoffs import plain_name
from infra.store import open_at
from training.checkpoint import load_module_weights
from training.export import fresh_run
from training.export.portable import (
    SAMPLE,
    Batch,
    Course,
    NotTensors,
    Portable,
    Untraceable,
    columns_in,
    flattened,
    named,
    outputs_of,
    read_columns,
    sampled,
    traced,
)
from training.loader import Shards, Split, stored_order
from training.loader.loaders import ReadyBatches
from training.score.team import Progress, local_copy, read_again
from training.user.imports import user_code
from training.user.ready import (
    batch_transform,
    build_datamodule,
    build_module,
    datamodule_of,
    make_ready,
    plain_trainer,
)

SAFETENSORS, TORCH, ONNX = "model.safetensors", "model.pt2", "model.onnx"
# A protobuf message may have 2 GiB; the graph needs some of it.
_INSIDE_BYTES = 2**30
# Metadata of nodes that quote the user's source and its path on this machine.
_QUOTES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")
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
# Without `site`, which would read the .pth file of an editable installation of ours.
_START = "import runpy, sys; sys.path += sys.argv[3:]; runpy.run_path(sys.argv[1], run_name='__main__')"
# Packages that decide what a file holds, or that read it.
_PACKAGES = {
    "safetensors": ("torch", "safetensors"),
    "huggingface": ("torch", "safetensors"),
    "torch": ("torch",),
    "onnx": ("torch", "onnx", "onnxscript", "onnxruntime"),
}


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
        raise _unconverted(error) from error
    for graph in (made.model.graph, *(function.graph for function in made.model.functions.values())):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
    path = folder / ONNX
    made.save(path, external_data=num_bytes > _INSIDE_BYTES)
    onnx.checker.check_model(str(path))


def _unconverted(error: Exception) -> UserCodeError:
    print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
    # Searched, never shown.
    text = "".join(traceback.format_exception_only(error))
    operation = re.search(r"OpOverload\(op='([\w.]+)'", text) or re.search(r"torch\.ops\.([\w.]+)", text)
    if operation is None:
        return Untraceable(f"The ONNX exporter failed: {describe(error)}.", remedy="Export it with --to torch.")
    return Untraceable(f"ONNX has no form of the operation {operation[1]}.", remedy="Export it with --to torch.")


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
        packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        script = [fresh_run.__file__, str(folder.path), *packages]
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", "-c", _START, *script],
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
    computed: Sequence[list[Any]],
    facts: Sequence[TensorFacts],
    tolerance: Tolerance | None,
) -> list[Agreement]:
    """How far each output is from the checkpoint's, over all batches.

    Args:
        name: of the exported file.
        expected, computed: batch by batch, one tensor or array for each output.
        tolerance: of floating point outputs; None: by their type.

    Raises: GateNotMet naming the output that is furthest outside its tolerance.
    """
    assert facts, "an export without outputs agrees with everything"
    agreements, faults = [], []
    for at, output in enumerate(facts):
        floating = output.dtype in TOLERANCES
        allowed = (tolerance or TOLERANCES[output.dtype]) if floating else EXACT
        largest, outside = 0.0, 0.0
        for reference, got in zip(expected, computed, strict=True):
            difference, excess = _difference(reference[at], got[at], allowed, output.name)
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


def _difference(reference: Tensor, got: Any, allowed: Tolerance, output: str) -> tuple[float, float]:
    """The largest difference, and by how much it is larger than allowed; infinite where one value is not finite."""
    here = np.asarray(
        reference.detach().cpu().to(torch.float64) if reference.is_floating_point() else reference.detach().cpu()
    )
    there = np.asarray(got)
    if here.shape != there.shape:
        raise GateNotMet(
            f"The output {output} has the shape {list(there.shape)} in the exported file, but {list(here.shape)} from "
            "the checkpoint.",
            remedy="Make the shape depend on the batch alone, or export the weights (--to safetensors).",
        )
    if not here.size:
        return 0.0, 0.0
    with np.errstate(invalid="ignore"):
        difference = np.abs(there.astype(np.float64) - here.astype(np.float64))
    difference = np.where(np.isnan(difference), np.inf, difference)
    difference[(here == there) | (np.isnan(here) & np.isnan(there))] = 0.0
    limit = np.where(np.isfinite(here), allowed.atol + allowed.rtol * np.abs(here), 0.0)
    return float(difference.max()), float((difference - limit).max())


@dataclass(frozen=True)
class ComparedRows:
    """Rows on which the file is compared with the checkpoint.

    Attributes:
        facts: of the inputs; inputs: their values, by name.
        batch: makes a batch of inputs; transform: what follows it in the graph.
        batches: batches as evaluate makes them, after `train.transform`, for the rows from-to in `ranges`.
    """

    facts: list[TensorFacts]
    inputs: dict[str, Tensor]
    batch: Batch
    transform: Any
    ranges: list[tuple[int, int]]
    batches: list[Any]


def main(request: ExportRequest, report: Report) -> Exported:
    """Export the checkpoint that a request names.

    Raises:
        UserCodeError: the module cannot be traced, or ONNX lacks an operation; it is named.
        GateNotMet: the file's outputs differ from the checkpoint's by more than the tolerance.
        CorruptError: the checkpoint is not what was sealed.
    """
    store, progress = open_at(request.store), Progress(report)
    read_again(store, request.checkpoint, progress, None)
    source, path = local_copy(store, request.checkpoint.ref, None), _dataset_path(request)
    module = build_module(request.train, request.project, path, load=lambda module: load_module_weights(module, source))
    # The exported file runs on any machine; what is written is the same wherever it is written.
    trainer = plain_trainer(request.train, [], {"devices": 1, "accelerator": "cpu"})
    datamodule = datamodule_of(module, request.train, request.project, path)
    make_ready(module, trainer, "predict", request.project, datamodule)
    module.eval()
    progress.moved(long=True)
    folder = Path(request.folder)
    versions = _versions(request.format)
    if request.format == "huggingface" and (model := pretrained_in(module)) is not None:
        with user_code("the model's save_pretrained", request.project):
            return write_pretrained(model, folder).model_copy(update={"versions": versions})
    if request.format in ("safetensors", "huggingface"):
        tensors, parameters, tied = write_tensors(module, folder)
        return Exported(files=[SAFETENSORS], tensors=tensors, parameters=parameters, tied=tied, versions=versions)
    return _program(request, module, folder, progress, versions)


def _program(
    request: ExportRequest, module: L.LightningModule, folder: Path, progress: Progress, versions: dict[str, str]
) -> Exported:
    trainer = module.trainer
    trainer.precision_plugin.convert_module(module)
    transform, fault = batch_transform(request.train, request.project), ""
    sample = _sample(request, transform, included=True)
    try:
        portable, program, facts = _traced(request, module, trainer, sample)
    except UserCodeError as error:
        if sample.transform is None:
            raise
        # If the module cannot be traced either, this raises what is wrong there.
        sample, fault = _sample(request, transform, included=False), error.message
        portable, program, facts = _traced(request, module, trainer, sample)
    progress.moved(long=True)
    names, step = portable.course.names, portable.step
    outputs = outputs_of(program, names)
    inputs = {one.name: sample.inputs[one.name] for one in facts}
    state = [value for value in module.state_dict().values() if isinstance(value, Tensor)]
    left_out = portable.course.left_out
    if request.format == "torch":
        write_torch(program, folder)
    else:
        example = {name: torch.zeros_like(value[:2]) for name, value in inputs.items()}
        write_onnx(program, example, portable.course, folder, sum(one.nbytes for one in state))
    progress.moved(long=True)
    file = folder / (TORCH if request.format == "torch" else ONNX)
    found = run_fresh(file, request.format, inputs, names, sample.ranges)
    progress.moved(long=True)
    with user_code(f"the module's {step}", request.project):
        expected = [list(named(one, []).values()) for one in _expected(portable, module, trainer, sample)]
    agreements = compare(file.name, expected, found, outputs, request.tolerance)
    return Exported(
        files=sorted(path.name for path in folder.iterdir()),
        tensors=len(state),
        parameters=sum(one.numel() for one in state),
        step=step,
        inputs=facts,
        outputs=outputs,
        unused=[one.name for one in sample.facts if one not in facts],
        left_out=left_out,
        transform=None if transform is None else sample.transform is not None,
        transform_fault=fault,
        agreements=agreements,
        sample=sample.ranges[0][1],
        batch_sizes=sorted({end - first for first, end in sample.ranges}),
        precision=str(trainer.precision),
        versions=versions,
    )


def _traced(request: ExportRequest, module: L.LightningModule, trainer: L.Trainer, sample: ComparedRows) -> Any:
    """The module as it is exported, its graph, and the facts of the inputs on which its outputs depend."""
    precision, columns = trainer.precision_plugin, request.train.get("batch")
    portable = Portable(module, sample.batch, sample.transform, precision, request.targets, columns).eval()
    program, facts = traced(portable, sample.facts, request.project)
    return portable, program, facts


def _expected(portable: Portable, module: L.LightningModule, trainer: L.Trainer, sample: ComparedRows) -> Any:
    """What the module returns for each of the sample's batches, as evaluate gets it: from the Trainer's predict."""
    if portable.step == "forward":
        module.predict_step = lambda batch, *_: portable._called(batch)  # type: ignore[method-assign]
    return trainer.predict(module, dataloaders=ReadyBatches(sample.batches, len(sample.batches)))


def _sample(request: ExportRequest, transform: Any, *, included: bool) -> ComparedRows:
    """The rows to compare, as inputs of the file and as batches.

    Args:
        included: whether the transform is part of the file; if not, inputs are what it returns.
    """
    train, dataset = request.train, request.dataset
    if dataset is None or train["lightning"].get("data"):
        return _sample_of_theirs(request)
    shards = Shards(request.path(dataset.ref), dataset, request.split)
    runs = sampled(shards.num_rows)
    rows = np.concatenate([np.arange(first, end) for first, end in runs])
    split = Split(shards, batch=train["batch"], transform=transform, loader=stored_order(train), in_order=True)
    ranges = batches_of(len(rows))
    batches = [split.take(rows[first:end]) for first, end in ranges]
    columns = columns_in(shards.schema, train) if included else None
    if columns is not None:
        inputs = read_columns(shards, columns.facts, runs)
        return ComparedRows(list(columns.facts), inputs, columns.batch, transform, ranges, batches)
    whole = split.batches(rows, len(rows))[0] if included else batches[0]
    try:
        return _of_batch(whole, train.get("batch"), transform if included else None, ranges, batches)
    except NotTensors:
        if included and transform is not None:
            return _sample(request, transform, included=False)
        raise


def _of_batch(
    whole: Any, columns: Any, transform: Any, ranges: list[tuple[int, int]], batches: list[Any]
) -> ComparedRows:
    """A sample whose inputs are the entries of a batch."""
    inputs, spec = flattened(whole, columns)
    rows = ranges[0][1]
    varying = (f"length_{number}" for number in itertools.count(1))
    facts = []
    for name, value in inputs.items():
        if not value.ndim or len(value) != rows:
            raise NotTensors(
                f"The model cannot be exported: the entry {name} of a batch of {rows} rows has the shape "
                f"{list(value.shape)}."
            )
        same = all(_entry(batch, spec, inputs, name).shape[1:] == value.shape[1:] for batch in batches) or transform
        shape = ["rows", *(size if same else next(varying) for size in value.shape[1:])]
        facts.append(TensorFacts(name=name, dtype=str(value.dtype).removeprefix("torch."), shape=shape))

    def batch(given: dict[str, Tensor]) -> Any:
        return pytree.tree_unflatten([given[name] for name in inputs], spec)

    return ComparedRows(facts, inputs, batch, transform, ranges, batches)


def _entry(batch: Any, spec: Any, inputs: dict[str, Tensor], name: str) -> Tensor:
    leaves, found = pytree.tree_flatten(batch)
    if found != spec:
        raise NotTensors("The model cannot be exported: batches of different sizes hold different entries.")
    return leaves[list(inputs).index(name)]


def _sample_of_theirs(request: ExportRequest) -> ComparedRows:
    """The first batch of the user's own data module."""
    datamodule = build_datamodule(request.train, request.project, _dataset_path(request))
    if datamodule is None:
        raise UsageError("The model has neither a dataset nor a data module, so nothing says what its inputs are.")
    with user_code("the data module", request.project):
        datamodule.prepare_data()
        datamodule.setup("test")
        whole = next(iter(datamodule.test_dataloader()))
    leaves, spec = pytree.tree_flatten(whole)
    rows = min([SAMPLE, *(len(one) for one in leaves if isinstance(one, Tensor) and one.ndim)])

    def cut(first: int, end: int) -> Any:
        return pytree.tree_unflatten([one[first:end] if isinstance(one, Tensor) else one for one in leaves], spec)

    ranges = batches_of(rows)
    return _of_batch(cut(0, rows), None, None, ranges, [cut(*one) for one in ranges])


def _dataset_path(request: ExportRequest) -> str:
    return "" if request.dataset is None else str(request.path(request.dataset.ref))


def _versions(kind: str) -> dict[str, str]:
    found = {}
    for name in _PACKAGES[kind]:
        try:
            found[name] = version(name)
        except PackageNotFoundError as error:
            raise UsageError(
                f"The environment of the model's code has no {name}, which an export to {kind} needs.",
                remedy=f"Add {name} to it, or export another format.",
            ) from error
    return found


if __name__ == "__main__":
    child_main(EXPORT, main)
