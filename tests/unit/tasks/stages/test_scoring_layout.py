"""Several ranks on this machine score as one process does, and the layout is in no key."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import UsageError
from tasks.run.options import RunOptions
from tasks.run.run import open_run
from tasks.stages.evaluate import evaluate, score
from tasks.stages.scoring_layout import layout_of
from tasks.stages.shard import shard
from tasks.stages.train import train
from tasks.stages.validate import validate
from tasks.stages.verify import verify
from tests.support.tiny import write_project

FSDP = {"strategy": "fsdp", "lightning": {}, "shard_modules": ["Block"]}
POOL, HERE = "work-pool", "local"


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


def layout(
    trained: dict[str, Any], launcher: str = HERE, train_launcher: str = HERE, ranks: int = 4, **spec: Any
) -> tuple[int, int]:
    """Nodes and devices that score a checkpoint of four ranks in a run that trains on `ranks`; its launch is gone."""
    evaluate = {"nodes": None, "devices": None, "strategy": None, **spec, "launcher": launcher}
    train = {"launcher": train_launcher, "world_size": ranks, "collective_timeout_s": 60.0}
    sections = SimpleNamespace(evaluate=SimpleNamespace(**evaluate), train=SimpleNamespace(**train))
    run: Any = SimpleNamespace(spec=sections, external=False, store=SimpleNamespace(find_as=lambda path, parse: None))
    checkpoint: Any = SimpleNamespace(training="trainings/k-0", generation=0, world_size=4)
    found = layout_of(run, checkpoint, trained, champion=False)
    return found.nodes, found.devices


def test_sharded_parameters_are_scored_as_they_were_trained_where_that_many_ranks_are() -> None:
    assert layout(FSDP) == (1, 4)
    assert layout(FSDP, launcher=POOL, train_launcher=POOL) == (1, 4)
    # A pool's gang does not fit the machine that conducts, and neither does a champion of more ranks.
    assert layout(FSDP, train_launcher=POOL) == (1, 1)
    assert layout(FSDP, ranks=2) == (1, 1)
    assert layout(FSDP, train_launcher=POOL, devices=2) == (1, 2)


def test_whole_parameters_are_scored_by_one_process_unless_the_spec_says_otherwise() -> None:
    assert layout({**FSDP, "strategy": "ddp"}) == (1, 1)
    assert layout({**FSDP, "strategy": "ddp"}, nodes=2, devices=3) == (2, 3)


def test_a_data_module_of_the_users_is_scored_by_one_process() -> None:
    theirs = {**FSDP, "lightning": {"data": {"class_path": "theirs.Data"}}}
    assert layout(theirs) == (1, 1)
    with pytest.raises(UsageError, match=r"evaluate\.devices: your own data module makes its own batches"):
        layout(theirs, devices=2)
