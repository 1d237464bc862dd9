"""A training that the user's code ends before its last epoch is complete; see `refuse_short` for one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny import MODEL, answer, trainwright, write_project

pytestmark = [pytest.mark.warm, pytest.mark.slow]
STOP = """
    def on_train_epoch_end(self):
        self.trainer.should_stop = True
"""


def test_a_module_may_end_its_training(tmp_path: Path) -> None:
    spec = write_project(tmp_path)
    (tmp_path / "net.py").write_text(MODEL + STOP)
    for verb in ("validate", "shard", "train"):
        done = trainwright(verb, spec, "--json")
        assert done.returncode == 0, done.stderr
    assert answer(done)["handoff"]["epoch"] == 1
