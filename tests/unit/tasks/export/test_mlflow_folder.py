"""The files that MLflow reads. (MLflow itself loads a model in tests/unit/tasks/mirrors/test_model_exports.py.)"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from data_contracts.messages.commands import Exported, TensorFacts
from tasks.export import EXAMPLE, MLMODEL, REQUIREMENTS, SERVING, write_mlflow_files

EXPORTED = Exported(
    files=["model.onnx"],
    tensors=1,
    parameters=1,
    inputs=[
        TensorFacts(name="a", dtype="float64", shape=["rows"]),
        TensorFacts(name="image", dtype="uint8", shape=["rows", 2, 2]),
        TensorFacts(name="flag", dtype="bool", shape=["rows"]),
    ],
    outputs=[TensorFacts(name="prediction", dtype="bfloat16", shape=["rows", 2])],
    versions={"torch": "2.13.0", "onnx": "1.23.2", "onnxruntime": "1.32.0"},
)


def test_the_files_say_what_the_model_takes_and_gives(tmp_path: Path) -> None:
    written = write_mlflow_files(tmp_path, EXPORTED, created="2026-11-25 02:00:00", metadata={"model": "tiny"})
    assert sorted(written) == sorted(path.name for path in tmp_path.iterdir())
    model = yaml.safe_load((tmp_path / MLMODEL).read_text())
    assert set(model["flavors"]) == {"onnx", "python_function"}
    assert [(one["name"], one["tensor-spec"]) for one in json.loads(model["signature"]["inputs"])] == [
        ("a", {"dtype": "float64", "shape": [-1]}),
        ("image", {"dtype": "uint8", "shape": [-1, 2, 2]}),
        ("flag", {"dtype": "bool", "shape": [-1]}),
    ]
    example = json.loads((tmp_path / EXAMPLE).read_text())
    assert example == {"a": [0.0, 0.0], "image": [[[0, 0], [0, 0]]] * 2, "flag": [False, False]}
    assert json.loads((tmp_path / SERVING).read_text()) == {"inputs": example}
    assert (tmp_path / REQUIREMENTS).read_text().split() == ["mlflow", "onnx==1.23.2", "onnxruntime==1.32.0", "numpy"]
