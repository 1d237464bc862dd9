"""A rank that trains and scores a module which writes its hooks down: as our processes do, and by Lightning's Trainer.

CASES tells what, one after another, each with the environment of a launch, and where the calls are written.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy

from data_contracts.handoffs import Checkpoint
from data_contracts.pipeline_spec import MetricSpec
from infra.gang.rank_files import RankFiles
from infra.processes.child_main import Report
from training.fit.assembly import our_loaders, train
from training.fit.launch_context import Context, read_context
from training.fit.rank import prepare
from training.fit.reports import Reports
from training.loader import OrderedLoader
from training.score.metrics import metric_classes
from training.score.scoring import Scorer, score
from training.score.team import Dealt, Progress, Team, team_of
from training.user.imports import add_project
from training.user.ready import build_datamodule, build_module, datamodule_of, make_ready, plain_trainer

METRICS = {
    "test": {"logged": "test_loss", "mode": "min"},
    "predict": {
        "class_path": "torchmetrics.classification.MulticlassAccuracy",
        "init_args": {"num_classes": 2},
        "target": "y",
        "mode": "max",
    },
}


def main() -> None:
    cases = json.loads(os.environ["CASES"])
    for case in cases:
        context = read_context({**os.environ, **case["environment"]})
        if case["by"] == "ours" and "resume" in case:
            context = replace(context, resume=saved_by(cases[0], case["resume"]))
        prepare(context)
        add_project(context.project)
        os.environ["RECORD"] = case["record"]
        {"plain": by_lightning, "ours": by_us}[case["by"]](context, case)


def saved_by(case: dict[str, Any], step: int) -> Checkpoint:
    """The checkpoint of a step that an earlier case sealed."""
    reported = RankFiles(Path(case["environment"]["TRAINWRIGHT_SCRATCH"]), 0).report()
    return next(one for one in reported.checkpoints if one.step == step)


def by_us(context: Context, case: dict[str, Any]) -> None:
    """As our processes do it."""
    if case["what"] == "fit" and not case.get("ready"):
        reports = Reports(context.scratch, context.rank, context.heartbeat_s)
        reports.done(*train(context, reports))
        return
    settings, project = context.settings, context.project
    module = build_module(settings, project, load=lambda module: None)
    if case.get("ready"):
        trainer = plain_trainer(settings, [], {"devices": 1, "accelerator": "cpu"})
        make_ready(module, trainer, case["what"], project, datamodule_of(module, settings, project, ""))
        return
    team = None
    if context.world_size > 1:
        team = team_of({"strategy": "ddp", "collective_timeout_s": 60}, os.environ, context.devices)
        team.connect(settings)
    report: Report = lambda message: None  # noqa: E731
    metrics = {"metric": MetricSpec.model_validate(METRICS[case["what"]])}
    classes = metric_classes(metrics, project, project)
    score(module, batches(context, team), metrics, classes, Scorer(settings, project, Progress(report), team))


def batches(context: Context, team: Team | None) -> Any:
    """The batches that are scored."""
    datamodule = build_datamodule(context.settings, context.project)
    if datamodule is not None:
        return datamodule
    split = our_loaders(context)[1]["val_dataloaders"].split
    return OrderedLoader(split, 8) if team is None else Dealt(split, 8, team)


def by_lightning(context: Context, case: dict[str, Any]) -> None:
    """By a Trainer of Lightning's, over the same batches."""
    import recorded  # type: ignore[import-not-found]

    plan, loaders = our_loaders(context)
    datamodule = recorded.Data() if context.lightning.get("data") else None
    folder, every = Path(case["checkpoints"]), case.get("save_every")
    own = [recorded.OfConfig()] if case["what"] == "fit" else []
    saves = [ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=every)] if every else []
    trainer = L.Trainer(
        **{**context.lightning["trainer"], "callbacks": [*own, *saves]},
        strategy=DDPStrategy() if context.world_size > 1 else "auto",
        devices=context.devices,
        accumulate_grad_batches=plan.accumulate if plan and case["what"] == "fit" else 1,
        use_distributed_sampler=plan is None,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(every),
        logger=False,
        default_root_dir=context.scratch,
    )
    module = recorded.Net()
    if case["what"] == "fit":
        resume = folder / f"step={case['resume']}.ckpt" if case.get("resume") else None
        trainer.fit(module, datamodule=datamodule, ckpt_path=resume, **loaders)
        return
    run = trainer.test if case["what"] == "test" else trainer.predict
    if datamodule is not None:
        run(module, datamodule=datamodule)
        return
    team = None if context.world_size == 1 else team_of({"strategy": "ddp", "collective_timeout_s": 60}, os.environ, 2)
    run(module, dataloaders=batches(context, team))


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
