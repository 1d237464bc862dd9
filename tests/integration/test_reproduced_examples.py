"""Both examples are made again to the bit; shortened, because the number of steps proves nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main
from tests.support.digits import change_yaml, copy_digits
from tests.support.tiny import answer, trainwright

STAGES = ("validate", "shard", "train", "verify", "evaluate", "promote")


def reproduced(spec: Path, *arguments: str) -> dict:
    """The answer of `reproduce`, for a model that the stages of a spec make first."""
    for stage in STAGES:
        assert main([stage, str(spec), *arguments]) == 0
    store, folder = spec.parent / ".trainwright", spec.parent.parent / "again"
    name = "digits" if "digits" in str(spec.parent.name) else "stdlib-gpt"
    done = trainwright("reproduce", name, "--store", store, "--into", folder, "--here", "--json", timeout_s=900)
    assert done.returncode == 0, done.stderr
    return answer(done)


@pytest.mark.slow
def test_the_digits_are_reproduced(tmp_path: Path) -> None:
    spec = copy_digits(tmp_path / "digits", promote={"gates": []})
    change_yaml(spec.parent / "lightning.yaml", ["trainer", "max_epochs"], 2)
    told = reproduced(spec)
    assert told["equal"]
    assert {row["what"] for row in told["rows"]} >= {"contract report", "dataset", "evaluation"}


@pytest.mark.slow
def test_the_gpt_is_reproduced_with_its_weights_on_two_ranks(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "stdlib_gpt"
    shutil.copytree(repository / "examples" / "stdlib_gpt", folder, ignore=shutil.ignore_patterns(".trainwright"))
    subprocess.run([sys.executable, str(folder / "prepare.py")], check=True, timeout=120)
    # The smaller modules: scoring all of the library takes longer than training. The contract wants 400.
    for path in sorted((folder / "data").glob("*.txt"), key=lambda path: path.stat().st_size)[420:]:
        path.unlink()
    for name, value in (("max_steps", 8), ("val_check_interval", 8)):
        change_yaml(folder / "short.yaml", ["trainer", name], value)
    change_yaml(folder / "pipeline.yaml", ["train", "checkpoint"], {"every_steps": 4})
    told = reproduced(folder / "pipeline.yaml", "--set", "train.lightning=short.yaml", "--set", "promote.gates=[]")
    assert told["equal"]
    assert [row["what"] for row in told["rows"] if "checkpoint" in row["what"]] == [
        "checkpoint, step 4",
        "checkpoint, step 8",
    ]
