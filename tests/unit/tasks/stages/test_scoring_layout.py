"""Several ranks on this machine score as one process does, and the layout is in no key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.run.options import RunOptions
from tasks.run.run import open_run
from tasks.stages.evaluate import evaluate, score
from tasks.stages.shard import shard
from tasks.stages.train import train
from tasks.stages.validate import validate
from tasks.stages.verify import verify
from tests.support.tiny import write_project


@pytest.mark.usefixtures("home")
def test_two_ranks_give_the_evaluation_of_one_process(tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny")
    run = open_run(spec, options=RunOptions(), recorded=False)
    dataset = shard(run, validate(run))
    checkpoint = verify(run, train(run, dataset))
    alone = evaluate(run, checkpoint, dataset)
    wide = open_run(spec, overrides=["evaluate.devices=2"], options=RunOptions(), recorded=False)
    found, reused = score(wide, checkpoint, dataset)
    assert reused
    found, reused = score(wide, checkpoint, dataset, afresh=True)
    assert not reused
    assert (found.metrics, found.ref and found.ref.id) == (alone.metrics, alone.ref and alone.ref.id)
