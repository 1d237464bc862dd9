"""The child process that exports a checkpoint: it loads the module, traces it, writes the file and compares outputs.

Run as `python -m training.export.worker REQUEST ANSWER` by `infra.child`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.messages.commands import EXPORT, Exported, ExportRequest, TensorFacts
from infra.processes.child_main import Report, child_main
from infra.store import open_at
from training.checkpoint import load_module_weights
from training.export import files
from training.export.files import batches_of, compare, reference, run_fresh
from training.export.portable import (
    SAMPLE,
    Batch,
    Course,
    NotTensors,
    Portable,
    columns_in,
    flattened,
    named,
    outputs_of,
    read_columns,
    sampled,
    traced,
)
from training.loader import Shards, Split, stored_order
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

# Packages that decide what a file holds, or that read it.
_PACKAGES = {
    "safetensors": ("torch", "safetensors"),
    "huggingface": ("torch", "safetensors"),
    "torch": ("torch",),
    "onnx": ("torch", "onnx", "onnxscript", "onnxruntime"),
}


@dataclass(frozen=True)
class Sample:
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

    @property
    def rows(self) -> int:
        """Rows of the sample."""
        return self.ranges[0][1]


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
    if request.format == "huggingface" and (model := files.pretrained_in(module)) is not None:
        with user_code("the model's save_pretrained", request.project):
            return files.write_pretrained(model, folder).model_copy(update={"versions": versions})
    if request.format in ("safetensors", "huggingface"):
        tensors, parameters, tied = files.write_tensors(module, folder)
        return Exported(files=[files.SAFETENSORS], tensors=tensors, parameters=parameters, tied=tied, versions=versions)
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
    _write(request, program, inputs, portable.course, sum(one.nbytes for one in state))
    progress.moved(long=True)
    file = folder / (files.TORCH if request.format == "torch" else files.ONNX)
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
        sample=sample.rows,
        batch_sizes=sorted({end - first for first, end in sample.ranges}),
        precision=str(trainer.precision),
        versions=versions,
    )


def _traced(request: ExportRequest, module: L.LightningModule, trainer: L.Trainer, sample: Sample) -> Any:
    """The module as it is exported, its graph, and the facts of the inputs on which its outputs depend."""
    precision, columns = trainer.precision_plugin, request.train.get("batch")
    portable = Portable(module, sample.batch, sample.transform, precision, request.targets, columns).eval()
    program, facts = traced(portable, sample.facts, request.project)
    return portable, program, facts


def _write(request: ExportRequest, program: Any, inputs: dict[str, Tensor], course: Course, num_bytes: int) -> None:
    folder = Path(request.folder)
    if request.format == "torch":
        files.write_torch(program, folder)
        return
    example = {name: torch.zeros_like(value[:2]) for name, value in inputs.items()}
    files.write_onnx(program, example, course, folder, num_bytes)


def _expected(portable: Portable, module: L.LightningModule, trainer: L.Trainer, sample: Sample) -> list[Any]:
    """What the module returns for the sample's batches in evaluate's way."""
    if portable.step == "forward":
        module.predict_step = lambda batch, *_: portable._called(batch)  # type: ignore[method-assign]
    return reference(trainer, module, sample.batches)


def _sample(request: ExportRequest, transform: Any, *, included: bool) -> Sample:
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
        return Sample(list(columns.facts), inputs, columns.batch, transform, ranges, batches)
    whole = split.batches(rows, len(rows))[0][0] if included else batches[0]
    try:
        return _of_batch(whole, train.get("batch"), transform if included else None, ranges, batches)
    except NotTensors:
        if included and transform is not None:
            return _sample(request, transform, included=False)
        raise


def _of_batch(whole: Any, columns: Any, transform: Any, ranges: list[tuple[int, int]], batches: list[Any]) -> Sample:
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

    return Sample(facts, inputs, batch, transform, ranges, batches)


def _entry(batch: Any, spec: Any, inputs: dict[str, Tensor], name: str) -> Tensor:
    leaves, found = pytree.tree_flatten(batch)
    if found != spec:
        raise NotTensors("The model cannot be exported: batches of different sizes hold different entries.")
    return leaves[list(inputs).index(name)]


def _sample_of_theirs(request: ExportRequest) -> Sample:
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
