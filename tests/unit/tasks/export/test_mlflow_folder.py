"""The files that MLflow reads; with --sweep, MLflow itself opens the folder and predicts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from data_contracts.messages.commands import Exported, TensorFacts
from tasks.export import EXAMPLE, MLMODEL, REQUIREMENTS, SERVING, write_mlflow_files
from tests.support import portables
from tests.support.real_mlflow import environment
from tests.unit.training.export.test_tracing import LABEL, ROOT, X, portable
from training.export.portable import outputs_of, traced
from training.export.worker import write_onnx

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
    inputs = json.loads(model["signature"]["inputs"])
    assert [(one["name"], one["tensor-spec"]) for one in inputs] == [
        ("a", {"dtype": "float64", "shape": [-1]}),
        ("image", {"dtype": "uint8", "shape": [-1, 2, 2]}),
        ("flag", {"dtype": "bool", "shape": [-1]}),
    ]
    example = json.loads((tmp_path / EXAMPLE).read_text())
    assert example == {"a": [0.0, 0.0], "image": [[[0, 0], [0, 0]]] * 2, "flag": [False, False]}
    assert json.loads((tmp_path / SERVING).read_text()) == {"inputs": example}
    assert (tmp_path / REQUIREMENTS).read_text().split() == ["mlflow", "onnx==1.23.2", "onnxruntime==1.32.0", "numpy"]


@pytest.mark.sweep
def test_mlflow_opens_the_folder_and_predicts(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    one = portable(portables.Classes())
    program, facts = traced(one, [*X, LABEL], ROOT)
    names = one.course.names
    write_onnx(program, {fact.name: torch.zeros(2, dtype=torch.float64) for fact in facts}, one.course, tmp_path, 0)
    exported = EXPORTED.model_copy(update={"inputs": facts, "outputs": outputs_of(program, names)})
    write_mlflow_files(tmp_path, exported, created="2026-11-25 02:00:00", metadata={"model": "tiny"})
    python = environment(tmp_path_factory)
    code = (
        "import json, mlflow, mlflow.onnx, numpy, sys; model = mlflow.pyfunc.load_model(sys.argv[1]);"
        "made = model.predict({name: numpy.array([1.0, 2.0, 3.0]) for name in 'abc'});"
        "zeros = model.predict(model.input_example); mlflow.onnx.load_model(sys.argv[1]);"
        "print(json.dumps([{name: one.tolist() for name, one in made.items()}, len(zeros['label'])]))"
    )
    done = subprocess.run([python, "-W", "ignore", "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made, zeros = json.loads(done.stdout.splitlines()[-1])
    with torch.no_grad():
        wanted = one({name: torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) for name in "abc"})
    assert made["label"] == wanted["label"].tolist()
    torch.testing.assert_close(torch.tensor(made["probabilities"]), wanted["probabilities"])
    assert zeros == 2
    assert sys.executable != str(python)
