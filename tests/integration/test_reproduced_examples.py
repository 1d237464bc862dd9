"""Both examples are made again to the bit, and leave the store; shortened: the number of steps proves nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import main
from tests.support.digits import change_yaml, copy_digits
from tests.support.exports import run_elsewhere
from tests.support.tiny import answer, trainwright

STAGES = ("validate", "shard", "train", "verify", "evaluate", "promote")
TENSOR = re.compile(r"tensor<uint8>\[(\d+)\]")


def made(spec: Path, *arguments: str) -> Path:
    """The store of a spec whose stages have made a model."""
    for stage in STAGES:
        assert main([stage, str(spec), *arguments]) == 0
    return spec.parent / ".trainwright"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = copy_digits(tmp_path_factory.mktemp("examples") / "digits", promote={"gates": []})
    change_yaml(spec.parent / "lightning.yaml", ["trainer", "max_epochs"], 2)
    return made(spec)


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "stdlib_gpt"
    shutil.copytree(repository / "examples" / "stdlib_gpt", folder, ignore=shutil.ignore_patterns(".trainwright"))
    subprocess.run([sys.executable, str(folder / "prepare.py")], check=True, timeout=120)
    # The smaller modules: scoring all of the library takes longer than training. The contract wants 400.
    for path in sorted((folder / "data").glob("*.txt"), key=lambda path: path.stat().st_size)[420:]:
        path.unlink()
    for name, value in (("max_steps", 8), ("val_check_interval", 8)):
        change_yaml(folder / "short.yaml", ["trainer", name], value)
    change_yaml(folder / "pipeline.yaml", ["train", "checkpoint"], {"every_steps": 4})
    return made(folder / "pipeline.yaml", "--set", "train.lightning=short.yaml", "--set", "promote.gates=[]")


def reproduced(name: str, store: Path, folder: Path) -> dict:
    """The answer of `reproduce`."""
    done = trainwright("reproduce", name, "--store", store, "--into", folder, "--here", "--json", timeout_s=900)
    assert done.returncode == 0, done.stderr
    return answer(done)


@pytest.mark.slow
def test_the_gpt_is_reproduced_with_its_weights_on_two_ranks(gpt: Path, tmp_path: Path) -> None:
    told = reproduced("stdlib-gpt", gpt, tmp_path / "again")
    assert told["equal"]
    assert [row["what"] for row in told["rows"] if "checkpoint" in row["what"]] == [
        "checkpoint, step 4",
        "checkpoint, step 8",
    ]


def rows_for(record: dict, file: Path, rows: int = 5) -> None:
    """A file of rows that an export takes as its page says."""
    columns = {}
    for one in record["inputs"]:
        drawn = np.random.default_rng(len(columns))
        if tensor := TENSOR.fullmatch(one["column"]):
            columns[one["name"]] = pa.array([drawn.bytes(int(tensor[1])) for _ in range(rows)])
        else:
            columns[one["name"]] = pa.array(drawn.integers(0, 17, rows).astype(one["dtype"]))
    pq.write_table(pa.table(columns), file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"), [pytest.param("digits", 10, marks=pytest.mark.sweep), pytest.param("gpt", 256)]
)
def test_an_example_leaves_the_store(
    name: str, values: int, request: pytest.FixtureRequest, tmp_path: Path, repository: Path
) -> None:
    store: Path = request.getfixturevalue(name)
    model = {"gpt": "stdlib-gpt"}.get(name, name)
    for target in ("torch", "onnx", "safetensors", "huggingface", "mlflow"):
        assert main(["export", model, str(tmp_path / target), "--to", target, "--store", str(store)]) == 0
    found = []
    for target, shown in (("torch", "outputs['prediction'].tolist()"), ("onnx", "outputs[0].tolist()")):
        record = json.loads((tmp_path / target / "export.json").read_text())
        rows_for(record, tmp_path / "rows.parquet")
        found.append(run_elsewhere(tmp_path / target, tmp_path / "rows.parquet", shown, tmp_path / f"{target}-away"))
    assert np.shape(found[0]) == (5, values)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-4)
