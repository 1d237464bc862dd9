"""Several ranks on this machine verify and score as one process does, and the layout is in no key."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.gang import Launch
from flows.stages import stages
from infra.store import layout as store_layout
from tasks.queries.plan import plan
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages.evaluate import evaluate, score
from tasks.stages.placement import ScoringLayout, layout_of, refuse_too_large
from tasks.stages.shard import shard
from tasks.stages.train import train
from tasks.stages.validate import validate
from tasks.stages.verify import verify
from tests.support.runs import make_run
from tests.support.tiny import SPEC

pytestmark = pytest.mark.warm

FSDP = {"strategy": "fsdp", "lightning": {}, "shard_modules": ["Block"]}
POOL, HERE = "work-pool", "local"
GIB = 2**30


def planned(run: Run) -> list[str]:
    return [step.line for step in plan(run, stages()) if step.name in ("verify", "evaluate")]


@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("home")
def test_two_ranks_verify_and_evaluate_as_one_process(spec: Path, caplog: pytest.LogCaptureFixture) -> None:
    two = ["verify.devices=2", "evaluate.devices=2", "evaluate.strategy=ddp"]
    run = open_run(read_spec(spec), options=RunOptions(), recorded=False)
    wide = open_run(read_spec(spec, two), options=RunOptions(), recorded=False)
    assert planned(wide) == [
        "verify    run     it depends on the result of validate (2 ranks on 1 node, ddp)",
        "evaluate  run     it depends on the result of validate (2 ranks on 1 node, ddp)",
    ]
    dataset = shard(run, validate(run))
    trained = train(run, dataset)
    with caplog.at_level(logging.INFO, "trainwright"):
        checkpoint = verify(wide, trained)
    path = store_layout.launch(store_layout.remote_job(wide.run_id, f"verify-{trained.ref.id[:16]}"), 0)
    assert run.store.read_as(path, Launch.from_json).devices == 2
    assert "on the held batch as recorded" in caplog.text
    assert f"step {trained.step:,} on 2 ranks (ddp): " in caplog.text
    assert planned(run)[0].startswith("verify    reuse")
    alone = evaluate(run, checkpoint, dataset)
    found, reused = score(wide, checkpoint, dataset)
    assert reused
    found, reused = score(wide, checkpoint, dataset, afresh=True)
    assert not reused
    assert (found.metrics, found.ref and found.ref.id) == (alone.metrics, alone.ref and alone.ref.id)


def scoring_layout(
    trained: dict[str, Any], launcher: str = HERE, train_launcher: str = HERE, ranks: int = 4, **spec: Any
) -> ScoringLayout:
    """The ranks that verify and score a checkpoint of four ranks in a run that trains on `ranks`.

    The launch of the checkpoint is gone, and its machine is unknown.
    """
    place = {HERE: {"launcher": HERE}, POOL: {"launcher": POOL, "pool": "gpus"}}
    section = {**spec, **place[launcher]}
    train = {**SPEC["train"], "strategy": "ddp", "devices": ranks, **place[train_launcher]}
    evaluate = {**SPEC["evaluate"], **section}
    run = make_run(spec={**SPEC, "train": train, "verify": section, "evaluate": evaluate})
    checkpoint: Any = SimpleNamespace(training="trainings/k-0", generation=0, world_size=4)
    found = layout_of(run, "evaluate", trained, checkpoint)
    if not trained["lightning"]:
        assert layout_of(run, "verify", trained, checkpoint) == found
    return found


DDP, HSDP = {**FSDP, "strategy": "ddp"}, {**FSDP, "strategy": "hsdp"}
# How it was trained, what differs in the run that scores, and the ranks (nodes, devices) or how they hold parameters.
LAYOUTS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (FSDP, {}, {"ranks": (1, 4)}),
    (FSDP, {"launcher": POOL, "train_launcher": POOL}, {"ranks": (1, 4)}),
    # A pool's gang does not fit the machine that conducts, and neither does a champion of more ranks.
    (FSDP, {"train_launcher": POOL}, {"ranks": (1, 1)}),
    (FSDP, {"ranks": 2}, {"ranks": (1, 1)}),
    (FSDP, {"train_launcher": POOL, "devices": 2}, {"ranks": (1, 2)}),
    # Whole parameters are scored by one process unless the spec says otherwise.
    (DDP, {}, {"ranks": (1, 1)}),
    (DDP, {"nodes": 2, "devices": 3}, {"ranks": (2, 3)}),
    # Ranks that do not make replicas and shards are fsdp; the checkpoint's launch is gone, so its ranks are one node.
    (HSDP, {}, {"strategy": "fsdp"}),
    (HSDP, {"devices": 2}, {"strategy": "fsdp"}),
    (FSDP, {"strategy": "hsdp"}, {"strategy": "fsdp"}),
    (HSDP, {"nodes": 2, "devices": 2}, {"strategy": "hsdp"}),
    ({**FSDP, "strategy": "single"}, {"devices": 2}, {"strategy": "ddp"}),
    # So are the batches of a data module of the user's.
    ({**FSDP, "lightning": {"data": {"class_path": "theirs.Data"}}}, {}, {"ranks": (1, 1)}),
]


@pytest.mark.parametrize(("trained", "changes", "expected"), LAYOUTS)
def test_a_checkpoint_is_scored_as_it_was_trained_where_that_is_possible(
    trained: dict[str, Any], changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = scoring_layout(trained, **changes)
    ranks = {"ranks": (found.nodes, found.devices), "strategy": found.settings.get("strategy")}
    assert ranks.items() >= expected.items()


def ranks(nodes: int, devices: int, strategy: str, shard_ranks: int | None = None) -> ScoringLayout:
    return ScoringLayout(nodes, devices, {"strategy": strategy, "shard_ranks": shard_ranks})


# Case: ranks, over how many of them the parameters are sharded, and how a plan and an error name them.
RANKS = [
    (ranks(1, 1, "fsdp"), 1, "", "one process"),
    (ranks(1, 2, "ddp"), 1, "2 ranks on 1 node, ddp", "ddp on 2 ranks"),
    (ranks(2, 1, "fsdp"), 2, "2 ranks on 2 nodes, fsdp", "fsdp on 2 ranks"),
    (ranks(2, 4, "hsdp"), 4, "8 ranks on 2 nodes, hsdp", "hsdp on 8 ranks"),
    (ranks(2, 4, "hsdp", 2), 2, "8 ranks on 2 nodes, hsdp", "hsdp on 8 ranks"),
]


@pytest.mark.parametrize(("found", "shard", "planned", "name"), RANKS)
def test_a_checkpoint_that_is_too_large_for_a_device_is_refused(
    found: ScoringLayout, shard: int, planned: str, name: str
) -> None:
    assert (found.shard_ranks, found.planned) == (shard, planned)
    for memory, weights in ((24 * GIB, shard * 24 * GIB), (0, 1000 * GIB)):
        refuse_too_large("verify", memory, weights, found, champion=False)
    with pytest.raises(UsageError) as refused:
        refuse_too_large("verify", 24 * GIB, shard * 32 * GIB, found, champion=False)
    least = -(-shard * 32 // 24)
    assert str(refused.value) == (
        f"verify.strategy: {name} cannot load the checkpoint: 32.0 GiB of parameters would lie on each device, which "
        f"has 24.0 GiB. Set verify.strategy to fsdp on at least {least} devices (verify.nodes, verify.devices)."
    )
    with pytest.raises(UsageError, match=r"cannot load the champion: .* Evaluate elsewhere"):
        refuse_too_large("evaluate", 24 * GIB, shard * 32 * GIB, found, champion=True)
