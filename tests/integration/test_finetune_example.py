"""Fine-tuning as people come to it from Hugging Face: transformers and peft in an environment of the pipeline's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.tiny import answer, trainwright

COMPARE = """
import sys, torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel
base, tuned = (GPT2LMHeadModel.from_pretrained(folder).state_dict() for folder in sys.argv[1:])
print(sorted({name.split(".")[-2] for name in base if not torch.equal(base[name], tuned[name])}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> str:
    """An interpreter with torch as here, and with transformers and peft."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    needs = repository / "examples" / "finetune" / "requirements.txt"
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", needs], check=True)
    return str(folder / "bin" / "python")


@pytest.mark.slow
def test_adapters_are_promoted_over_the_untouched_model_and_exported(python: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert trainwright("init", folder, "--from", "huggingface").returncode == 0
    assert json.loads((folder / "suite.json").read_text())
    # Without its secrets: none of them is this code's business.
    subprocess.run([python, folder / "prepare.py"], check=True, env={"PATH": os.environ["PATH"]})
    rows = pq.read_table(folder / "data" / "manual.parquet")
    pq.write_table(rows.slice(0, 2000), folder / "data" / "manual.parquet")
    done = trainwright("run", folder / "pipeline.yaml", "--store", tmp_path / "store", "--json", timeout_s=900)
    assert done.returncode == 0, done.stderr
    report = answer(done)
    assert report["verdict"] == "promoted"
    assert report["metrics"]["gain_over_base"] > 0.2
    out = tmp_path / "out"
    done = trainwright("export", "mine@champion", out, "--to", "huggingface", "--store", tmp_path / "store")
    assert done.returncode == 0, done.stderr
    assert {"config.json", "model.safetensors", "README.md", "export.json"} <= {path.name for path in out.iterdir()}
    changed = subprocess.run([python, "-c", COMPARE, folder / "base", out], check=True, capture_output=True, text=True)
    assert changed.stdout == "['c_attn', 'c_fc', 'c_proj']\n"
    assert "GPT2LMHeadModel.from_pretrained" in (out / "README.md").read_text()
    assert str(tmp_path) not in "".join(path.read_text() for path in out.glob("*.json"))
