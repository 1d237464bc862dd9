"""Runs an exported file on arrays in a process without Trainwright, which `training.export.worker` starts.

Its folder has `task.json` (file, names of inputs and outputs, batches as from-to pairs) and `inputs.npz`; the outputs
of each batch are written to `outputs.npz`. It imports nothing of ours, and refuses to run if it could.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

OURS = ("data_contracts", "infra", "training", "tasks", "flows")
Arrays = dict[str, NDArray[Any]]
Run = Callable[[Arrays], list[Any]]


def main(folder: Path) -> None:
    """Carry out the task in a folder."""
    refuse_ours()
    task = json.loads((folder / "task.json").read_text())
    run = {"torch": with_torch, "onnx": with_onnx}[task["format"]](Path(task["file"]), task["outputs"])
    with np.load(folder / "inputs.npz", allow_pickle=False) as file:
        inputs = {name: file[str(at)] for at, name in enumerate(task["inputs"])}
    made: dict[str, Any] = {}
    for number, (first, end) in enumerate(task["batches"]):
        outputs = run({name: value[first:end] for name, value in inputs.items()})
        made |= {f"{number}-{at}": value for at, value in enumerate(outputs)}
    np.savez(folder / "outputs.npz", **made)


def refuse_ours() -> None:
    """Exit if Trainwright can be imported."""
    if found := [name for name in OURS if importlib.util.find_spec(name)]:
        raise SystemExit(f"Trainwright can be imported here: {', '.join(found)}")


def with_torch(file: Path, outputs: list[str]) -> Run:
    """A `model.pt2`; bfloat16 becomes float32, which holds each of its values."""
    import torch

    model = torch.export.load(file).module()

    def run(inputs: Arrays) -> list[Any]:
        with torch.no_grad():
            made = model({name: torch.from_numpy(value.copy()) for name, value in inputs.items()})
        values = [made[name].detach() for name in outputs]
        return [(one.float() if one.dtype == torch.bfloat16 else one).numpy() for one in values]

    return run


def with_onnx(file: Path, outputs: list[str]) -> Run:
    """A `model.onnx`."""
    import onnxruntime

    model = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def run(inputs: Arrays) -> list[Any]:
        made = model.run(outputs, inputs)
        return [one.astype(np.float32) if one.dtype.name == "bfloat16" else one for one in made]

    return run


if __name__ == "__main__":
    main(Path(sys.argv[2]))
