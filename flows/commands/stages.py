"""Stage verbs: one stage each, without Prefect. Earlier hand-offs are taken from the store by their keys."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.handoffs import HandOff
from flows.commands.guard import Answer
from tasks.earlier import earlier_checkpoint, earlier_contract, earlier_dataset, earlier_evaluation
from tasks.evaluate import evaluate as evaluate_stage
from tasks.history import curves, logged_metrics
from tasks.promote import promote as promote_stage
from tasks.run import Run, open_run
from tasks.shard import shard as shard_stage
from tasks.train import train as train_stage
from tasks.validate import validate as validate_stage
from tasks.verify import verify as verify_stage


def validate(arguments: argparse.Namespace) -> Answer:
    """The `validate` command."""
    run = _open(arguments)
    return _answer(run, "validate", validate_stage(run), arguments)


def shard(arguments: argparse.Namespace) -> Answer:
    """The `shard` command."""
    run = _open(arguments)
    return _answer(run, "shard", shard_stage(run, earlier_contract(run)), arguments)


def train(arguments: argparse.Namespace) -> Answer:
    """The `train` command."""
    run = _open(arguments)
    checkpoint = train_stage(run, earlier_dataset(run))
    if arguments.curves:
        for file, records in curves(logged_metrics(run.store, checkpoint)).items():
            _write(Path(arguments.curves) / file, records)
    return _answer(run, "train", checkpoint, arguments)


def verify(arguments: argparse.Namespace) -> Answer:
    """The `verify` command."""
    run = _open(arguments)
    return _answer(run, "verify", verify_stage(run, earlier_checkpoint(run, verified=False)), arguments)


def evaluate(arguments: argparse.Namespace) -> Answer:
    """The `evaluate` command."""
    run = _open(arguments)
    checkpoint = earlier_checkpoint(run, verified=True)
    evaluation = evaluate_stage(run, checkpoint, earlier_dataset(run))
    if arguments.metrics:
        _write(Path(arguments.metrics), {name: metric.value for name, metric in evaluation.metrics.items()})
    return _answer(run, "evaluate", evaluation, arguments)


def promote(arguments: argparse.Namespace) -> Answer:
    """The `promote` command."""
    run = _open(arguments)
    dataset, checkpoint = earlier_dataset(run), earlier_checkpoint(run, verified=True)
    evaluation = earlier_evaluation(run, checkpoint, dataset)
    return _answer(run, "promote", promote_stage(run, checkpoint, dataset, evaluation), arguments)


def _open(arguments: argparse.Namespace) -> Run:
    if arguments.window is not None and ".." not in arguments.window:
        raise UsageError(
            f"--window {arguments.window}: a length ends now, which is another moment for each verb.",
            remedy="Give the same START..END to each stage verb.",
        )
    return open_run(
        arguments.spec,
        window=arguments.window,
        overrides=arguments.set,
        store_uri=arguments.store,
        fresh=getattr(arguments, "new", False),
        rehash=arguments.rehash,
        recorded=False,
    )


def _answer(run: Run, name: str, handoff: HandOff | None, arguments: argparse.Namespace) -> Answer:
    value: dict[str, Any] = handoff.to_json() if handoff is not None else {"skipped": True}
    if arguments.out:
        _write(Path(arguments.out), value)
    result = run.results[name]
    return Answer(f"{name} {result.status}: {result.sentence}", {"stage": result.to_json(), "handoff": value})


def _write(path: Path, value: Any) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", remedy="Name another file.") from error
