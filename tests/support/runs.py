"""Runs for tests of what reads a run: real ones, made from a spec in memory, without a project or a lookup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_contracts.handoffs import Receipt, Ref
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.resolved import Price, Resolved
from infra.store import Store
from tasks.run.run import Run
from tasks.stages.evaluate import evaluate
from tasks.stages.promote import promote
from tasks.stages.shard import shard
from tasks.stages.train import train
from tasks.stages.validate import validate
from tasks.stages.verify import verify
from tests.support.raced import Memory

MINIMAL: dict[str, Any] = {
    "version": 1,
    "name": "tiny",
    "data": "external",
    "train": {"lightning": {"model": {"class_path": "net.Net"}}, "global_batch_size": 8},
    "evaluate": {"metrics": {"loss": {"logged": "loss", "mode": "min"}}},
}


def make_run(
    store: Store | None = None,
    *,
    run_id: str = "r1",
    recorded: bool = True,
    spec: Mapping[str, Any] | None = None,
    **resolved: Any,
) -> Run:
    """A run in a store (default: one in memory), of which nothing is written.

    Args:
        spec: sections that are laid over those of `MINIMAL`, each over the section of its name.
        resolved: inputs of the run that the test is about; the others are fixed.
    """
    sections = dict(MINIMAL)
    for name, section in (spec or {}).items():
        before = sections.get(name)
        sections[name] = {**before, **section} if isinstance(before, dict) else section
    store = store or Store(Memory(), {})
    content = PipelineSpec.model_validate(sections).model_dump(mode="json")
    known: dict[str, Any] = {
        "spec_path": "/project/pipeline.yaml",
        "root": "/project",
        "window": None,
        "files": [],
        "sets": {},
        "suite": None,
        "lightning": content["train"]["lightning"],
        "code": Ref(uri="code/c", id="c", seal="s"),
        "code_digest": "c",
        "champion": None,
        "price": Price(machine="cpu", per_hour=0.0, price_date="2026-01-01"),
        "trigger": "cli",
        "actor": "ann",
        "commit": None,
        "dirty": False,
        "lock_digest": "l",
        "started": "2026-11-02T03:00:00+00:00",
    }
    inputs = Resolved(run_id=run_id, spec=content, store=store.uri, **{**known, **resolved})
    return Run(inputs, store, recorded=recorded)


def carry_out(run: Run) -> Receipt:
    """Carry out the stages of a run as plain functions, without Prefect; what they start are processes, as in a run."""
    dataset = shard(run, validate(run))
    checkpoint = verify(run, train(run, dataset))
    return promote(run, checkpoint, dataset, evaluate(run, checkpoint, dataset))
