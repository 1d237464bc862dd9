"""A profile of a real training: the page and the trace, what bounds a step, and that nothing else is left."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pictures import Elements
from tests.support.tiny import MODEL, SPEC, answer, succeed, trainwright, write_project

pytestmark = pytest.mark.warm

SLOW = """
import time


def slow(batch):
    time.sleep({seconds})
    return batch
"""


def project(folder: Path, **train: Any) -> Path:
    """A project whose dataset is made."""
    spec = write_project(folder, {"train": {**SPEC["train"], **train}})
    (folder / "slow.py").write_text(SLOW.format(seconds=0.05))
    for verb in ("validate", "shard"):
        succeed(verb, spec)
    return spec


def profile_of(spec: Path) -> dict[str, Any]:
    """What a profile of the training says."""
    # On a busy machine, the threads of a tiny product wait for each other longer than the transform takes.
    return dict(answer(succeed("train", spec, "--profile", "--json", env={"OMP_NUM_THREADS": "1"}))["profile"])


def refused(spec: Path, exit_code: int, *settings: str) -> str:
    """Why a training cannot be profiled."""
    done = trainwright("train", spec, "--profile", "--json", *(f"--set={one}" for one in settings))
    assert done.returncode == exit_code, done.stderr
    return str(answer(done)["error"]["message"])


def files(folder: Path) -> set[str]:
    """The files of a project and its store, but for the marks of the day on which a dataset was used."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(".trainwright/uses/")}


def test_a_slow_transform_is_found_and_the_gain_without_it_is_measured(tmp_path):
    spec = project(tmp_path / "tiny", transform={"call": "slow.slow"})
    before = files(tmp_path / "tiny")
    found = profile_of(spec)
    assert (found["bound"], found["helps"], found["steps"]) == ("data", True, 20)
    assert found["seconds"]["data"] >= 0.05
    assert "train.transform takes longest" in found["change"]
    assert found["samples_per_s"]["after"] > found["samples_per_s"]["before"]
    assert files(tmp_path / "tiny") == before, "no training, checkpoint or record"

    with gzip.open(found["trace"]) as file:
        events = json.load(file)["traceEvents"]
    names = [one["name"] for one in events if one.get("cat") == "user_annotation"]
    for part in ("data", "transfer", "forward", "backward", "optimizer"):
        assert names.count(f"trainwright: {part}") == 20, part
    elements = Elements()
    elements.feed(Path(found["page"]).read_text())
    assert "script" not in elements.names
    assert "Bound by data" in elements.texts


def test_what_cannot_be_profiled_is_one_sentence(tmp_path):
    spec = project(tmp_path / "tiny")
    few = refused(spec, 2, "train.lightning.trainer.max_epochs=0")
    assert "The training ends before a step can be timed" in few
    elsewhere = refused(spec, 2, "train.launcher=work-pool", "train.pool=gpus")
    assert elsewhere.startswith("train.launcher: a profile runs on this machine")
    (tmp_path / "tiny" / "net.py").write_text(
        MODEL.replace("x, y = batch\n        loss", "raise ValueError('x')\n        loss")
    )
    assert "raised ValueError" in refused(spec, 8)


@pytest.mark.slow
def test_waiting_for_a_slower_rank_is_communication_and_the_cause_of_either_rank_is_told(tmp_path):
    spec, step = project(tmp_path / "tiny", devices=2, strategy="ddp"), "x, y = batch\n        loss"
    waits = f"__import__('time').sleep(0.05 * self.global_rank)\n        {step}"
    (tmp_path / "tiny" / "net.py").write_text(MODEL.replace(step, waits))
    found = profile_of(spec)
    assert (found["bound"], found["steps"]) == ("communication", 20)
    assert "train.global_batch_size 64, train.micro_batch_size 16" in found["change"]
    fails = f"if self.global_rank == 1:\n            raise ValueError('x')\n        {step}"
    (tmp_path / "tiny" / "net.py").write_text(MODEL.replace(step, fails))
    assert "raised ValueError" in refused(spec, 8)
