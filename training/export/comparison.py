"""Compares an exported file's outputs, computed in a fresh process without Trainwright, with the checkpoint's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_contracts.errors import GateNotMet, TrainwrightError, UserCodeError
from data_contracts.messages.commands import Agreement, TensorFacts, Tolerance
from data_contracts.quoting import withhold
from infra import scratch
from training.export import fresh_run

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
