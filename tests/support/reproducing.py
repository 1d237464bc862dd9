"""A tiny line whose training has a history: a rank of two fails, it continues with one rank, and diverges once."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli import main
from tests.support.tiny import MODEL, SPEC, write_project

# The training raises at this step while BREAKS is set; and in epoch 2 its loss is not a number for batches with rows in
# which `a` is POISON: one row of the train split.
BREAKS, BREAKS_AT, POISON = "TINY_BREAKS", 25, 0.988787
_STEP = "        x, y = batch\n        loss = nn.functional.cross_entropy(self(x), y)\n"
_TROUBLE = f"""\
        if os.environ.get("{BREAKS}") and self.global_step == {BREAKS_AT}:
            raise RuntimeError("broken")
        if self.current_epoch == 2 and bool(((x[:, 0] - {POISON}).abs() < 1e-6).any()):
            loss = loss * float("nan")
"""


def make_line(folder: Path) -> Path:
    """Make the project and promote its version 1, stage by stage; returns the spec. TRAINWRIGHT_HOME must be set."""
    gates = [{"metric": "accuracy", "min": 0.1}]
    train = {**SPEC["train"], "strategy": "ddp", "devices": 2, "checkpoint": {"every_steps": 10, "keep": 3}}
    spec = write_project(folder, {"train": train, "promote": {"gates": gates}})
    assert _STEP in MODEL
    (folder / "net.py").write_text("import os\n\n" + MODEL.replace(_STEP, _STEP + _TROUBLE))
    for stage in ("validate", "shard"):
        assert main([stage, str(spec)]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BREAKS, "1")
        assert main(["train", str(spec)]) == 8
    for stage in ("train", "verify", "evaluate", "promote"):
        assert main([stage, str(spec), "--set", "train.devices=1"]) == 0
    return spec
