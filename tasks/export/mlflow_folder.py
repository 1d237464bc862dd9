"""Makes a folder with an ONNX file one that MLflow's own `load_model` opens, from facts alone and without MLflow.

The format is that of `MLmodel` files of MLflow 3: flavours `onnx` and `python_function`, a signature of named tensors,
and an input example of zeros.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from data_contracts.messages.commands import Exported, TensorFacts

MLMODEL, REQUIREMENTS = "MLmodel", "requirements.txt"
EXAMPLE, SERVING = "input_example.json", "serving_input_example.json"
# The version whose format is written.
_MLFLOW = "3.17.0"
_EXAMPLE_ROWS = 2


def write_mlflow_files(
    folder: Path, exported: Exported, *, created: str, metadata: dict[str, Any] | None = None
) -> list[str]:
    """Write `MLmodel` and what it names beside `model.onnx`; returns the names of the files written.

    Args:
        created: UTC, as `2026-11-25 02:00:00`.
        metadata: facts that MLflow keeps with the model, as JSON can hold them.
    """
    versions = exported.versions
    needs = ["mlflow", *(f"{name}=={versions[name]}" for name in ("onnx", "onnxruntime") if name in versions), "numpy"]
    (folder / REQUIREMENTS).write_text("\n".join(needs) + "\n")
    python = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    environment = {"python": python, "build_dependencies": ["pip"], "dependencies": [f"-r {REQUIREMENTS}"]}
    (folder / "python_env.yaml").write_text(yaml.safe_dump(environment, sort_keys=False))
    example = {one.name: _zeros(_sizes(one), one.dtype) for one in exported.inputs}
    (folder / EXAMPLE).write_text(json.dumps(example))
    (folder / SERVING).write_text(json.dumps({"inputs": example}))
    model = {
        "flavors": {
            "onnx": {
                "data": "model.onnx",
                "onnx_version": versions.get("onnx", ""),
                "providers": ["CPUExecutionProvider"],
                "onnx_session_options": None,
                "code": None,
            },
            "python_function": {
                "loader_module": "mlflow.onnx",
                "data": "model.onnx",
                "env": {"virtualenv": "python_env.yaml"},
                "python_version": python,
            },
        },
        "mlflow_version": _MLFLOW,
        "saved_input_example_info": {"artifact_path": EXAMPLE, "type": "ndarray", "serving_input_path": SERVING},
        "signature": {"inputs": _signature(exported.inputs), "outputs": _signature(exported.outputs), "params": None},
        "utc_time_created": created,
        "metadata": metadata or {},
    }
    (folder / MLMODEL).write_text(yaml.safe_dump(model, sort_keys=False, allow_unicode=True))
    return [MLMODEL, REQUIREMENTS, "python_env.yaml", EXAMPLE, SERVING]


def _signature(facts: Sequence[TensorFacts]) -> str:
    """Named tensors as MLflow writes them in a signature; a size that varies is -1."""
    specs = []
    for one in facts:
        shape = [size if isinstance(size, int) else -1 for size in one.shape]
        # ONNX Runtime gives no bfloat16 to NumPy.
        dtype = "float32" if one.dtype == "bfloat16" else one.dtype
        specs.append({"name": one.name, "type": "tensor", "tensor-spec": {"dtype": dtype, "shape": shape}})
    return json.dumps(specs)


def _sizes(one: TensorFacts) -> list[int]:
    return [size if isinstance(size, int) else _EXAMPLE_ROWS for size in one.shape]


def _zeros(sizes: Sequence[int], dtype: str) -> Any:
    """Nested lists of zeros; no row of the data leaves the store."""
    zero: Any = False if dtype == "bool" else 0.0 if "float" in dtype else 0
    if not sizes or math.prod(sizes) == 0:
        return [] if sizes else zero
    return [_zeros(sizes[1:], dtype) for _ in range(sizes[0])]
