"""`export` writes a folder that runs without Trainwright by the three lines on its page, and equals the checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from blake3 import blake3

from flows.cli import main
from tasks import export
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tests.support.commands import json_of, output_of
from tests.support.exports import run_elsewhere
from tests.support.runs import carry_out
from tests.support.tiny import MODEL, write_project

pytestmark = pytest.mark.warm
# Another class's probabilities and a choice, and one thing that cannot be traced.
PREDICTS = """
    def predict_step(self, batch, batch_idx):
        logits = self(batch[0])
        return {"label": logits.argmax(1), "probabilities": logits.softmax(1)}


class Branching(Net):
    def predict_step(self, batch, batch_idx):
        logits = self(batch[0])
        if logits.sum() > 0:
            return logits
        return -logits
"""
TRANSFORM = '''"""Preprocessing."""


def doubled(batch):
    return batch[0] * 2, batch[1]
'''


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a promoted version whose predict_step returns a dictionary, with a `train.transform`."""
    spec = write_project(tmp_path_factory.mktemp("project") / "tiny")
    (spec.parent / "net.py").write_text(MODEL + PREDICTS)
    (spec.parent / "shape.py").write_text(TRANSFORM)
    written = yaml.safe_load(spec.read_text())
    written["train"]["transform"] = "shape.doubled"
    written["evaluate"]["metrics"]["accuracy"]["prediction"] = "probabilities"
    spec.write_text(yaml.safe_dump(written))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWRIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        assert carry_out(open_run(read_spec(spec))).decision == "promoted"
    return spec.parent


@pytest.fixture(scope="module")
def exported(line: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Exports the model to a target, once."""
    made: dict[str, Path] = {}
    root = tmp_path_factory.mktemp("exports")

    def export(target: str) -> Path:
        if target not in made:
            words = ["export", "tiny", str(root / target), "--to", target, "--store", str(line / ".trainwright")]
            assert main(words) == 0
            made[target] = root / target
        return made[target]

    return export


def expected(line: Path, rows: Path) -> np.ndarray[Any, Any]:
    """Probabilities of the rows, computed from the checkpoint's tensors by hand."""
    import pyarrow.parquet as pq
    from safetensors.numpy import load_file

    (weights,) = sorted(line.glob(".trainwright/trainings/*/checkpoints/45-g0/weights-0.safetensors"))
    tensors = load_file(weights)
    table = pq.read_table(rows)
    x = np.stack([table[name].to_numpy() for name in "abc"], 1).astype(np.float32) * 2
    hidden = np.maximum(x @ tensors["net.0.weight"].T + tensors["net.0.bias"], 0)
    logits = hidden @ tensors["net.2.weight"].T + tensors["net.2.bias"]
    exps = np.exp(logits - logits.max(1, keepdims=True))
    return exps / exps.sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("torch", "{name: value.numpy().tolist() for name, value in outputs.items()}"),
        ("onnx", "dict(zip(['output_label', 'probabilities'], [value.tolist() for value in outputs]))"),
    ],
)
def test_the_three_lines_of_the_page_run_without_trainwright(
    target: str, shown: str, line: Path, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    (rows,) = line.glob(".trainwright/datasets/*/train-*.parquet")
    made = run_elsewhere(exported(target), rows, shown.replace("output_label", "label"), tmp_path / "elsewhere")
    wanted = expected(line, rows)
    np.testing.assert_allclose(made["probabilities"], wanted, atol=1e-5)
    assert made["label"] == wanted.argmax(1).tolist()


def test_the_record_has_the_digests_and_the_largest_difference(exported: Callable[[str], Path], line: Path) -> None:
    folder = exported("onnx")
    record = json.loads((folder / "export.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "export.json", "model.onnx"]
    for one in record["files"]:
        content = (folder / one["path"]).read_bytes()
        assert (one["bytes"], one["blake3"]) == (len(content), blake3(content).hexdigest())
    assert [one["name"] for one in record["inputs"]] == ["a", "b", "c"]
    assert ({one["dtype"] for one in record["inputs"]}, record["transform"]) == ({"float64"}, True)
    assert record["batch_sizes"][0] == 1
    assert all(one["largest"] <= 1e-5 for one in record["agreements"])
    assert {one["output"] for one in record["agreements"]} == {"label", "probabilities"}
    assert all(record[name]["seal"] for name in ("checkpoint", "version_ref"))


def test_the_card_is_made_of_facts(exported: Callable[[str], Path], line: Path) -> None:
    folder = exported("huggingface")
    _, block, body = (folder / "README.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(block)
    (model,) = metadata["model-index"]
    result = model["results"][0]
    assert model["name"] == "tiny"
    assert (set(result), result["metrics"][0]["name"]) == ({"task", "dataset", "metrics"}, "accuracy")
    assert "license" not in metadata
    for fact in (
        "License: not known",
        "Rows: test 59, train 492, val 49",
        "Contract: accepted; 600 rows",
        "- met: accuracy",
    ):
        assert fact in body
    # No row of the data and no code leaves the store.
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "export.json",
        "model.safetensors",
    ]
    values = {word for row in (line / "rows.csv").read_text().splitlines()[1:] for word in row.split(",")[1:4]}
    for path in folder.glob("*.*"):
        if path.suffix in (".md", ".json"):
            assert not values & set(re.findall(r"-?\d\.\d{5,6}\b", path.read_text())), path.name


def test_a_folder_that_is_taken_is_refused_and_nothing_is_left(
    line: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--to", "safetensors", "--store", str(line / ".trainwright")]
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name, why in (
        ("full", "is not empty"),
        ("link", "is a link"),
        ("full/file", "is a file"),
        ("no/where", "not a folder"),
    ):
        assert why in output_of(capsys, "export", "tiny", str(tmp_path / name), *store, code=2)
    assert "no version 7" in output_of(capsys, "export", "tiny@7", str(tmp_path / "new"), *store, code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "link"]
    assert (tmp_path / "full/file").read_text() == "mine"


def test_what_cannot_be_traced_is_named_in_one_sentence(
    line: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class is changed for the child alone: the sealed one would have to be trained again."""
    original = export.model_facts

    def branching(store: Any, name: str) -> Any:
        facts = original(store, name)
        facts.trained.train["lightning"]["model"]["class_path"] = "net.Branching"
        return facts

    monkeypatch.setattr(export, "model_facts", branching)
    words = ["export", "tiny", str(tmp_path / "out"), "--to", "torch", "--store", str(line / ".trainwright"), "--json"]
    said = json_of(capsys, *words, code=8)["error"]
    assert said["message"].startswith("torch.export cannot trace the module in net.py:")
    assert "net.py:36" in said["message"]
    assert not list(tmp_path.iterdir())


def test_a_candidate_must_agree_with_its_export_before_the_alias_moves(
    line: Path, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Path(shutil.copytree(line, tmp_path / "tiny"))
    aliases = project / ".trainwright/aliases/tiny"
    words = ["promote", str(project / "pipeline.yaml"), "--set"]
    exact = "promote.export=[{to: onnx, atol: 0, rtol: 0}]"
    said = json_of(capsys, *words, exact, "--set", "promote.alias=exact", "--json", code=4)["error"]["message"]
    assert said.startswith(
        "Not promoted, the export to onnx failed: The output probabilities of model.onnx differs from"
    )
    assert said.endswith("no version was made.")
    assert not (aliases / "exact").exists()
    assert main([*words, "promote.export=[onnx]", "--set", "promote.alias=usable"]) == 0
    assert (aliases / "usable").exists()
    manifests = [json.loads(path.read_text()) for path in sorted(aliases.glob("history/usable/*/manifest.json"))]
    compared = [one["provenance"]["exports"]["onnx"] for one in manifests if "exports" in one["provenance"]]
    assert [[one["output"] for one in made["agreements"]] for made in compared] == [["label", "probabilities"]]
    capsys.readouterr()
    assert "names a form twice" in output_of(capsys, *words, "promote.export=[onnx, onnx]", code=2)


def test_a_number_that_is_not_a_tolerance_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("-1", "nan", "inf"):
        assert "--atol" in output_of(capsys, "export", "tiny", "out", "--to", "onnx", f"--atol={value}", code=2)
