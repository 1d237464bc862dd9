"""The stage commands: one stage each, without Prefect. Earlier hand-offs come from the store, by their keys."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_contracts.errors import ContractRejected, UsageError
from data_contracts.handoffs import HandOff
from flows.commands.guard import Answer
from flows.features import is_present
from flows.stages import LINE, stage_name, stages
from infra.written_files import record_written
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages.stage import EarlierHandoffs

if is_present("queries"):
    from tasks.queries.history import curves, logged_metrics, write_logger_files


def stage(arguments: argparse.Namespace) -> Answer:
    """The command of a stage: carries it out alone and answers with its hand-off."""
    forced = _forced(arguments)
    run = opened(arguments)
    if getattr(arguments, "profile", False):
        from flows.commands.run import profiled_stage

        return profiled_stage(run, arguments)
    [wanted] = stages(module for module in LINE if stage_name(module) == arguments.command)
    try:
        handoff = wanted(run, *EarlierHandoffs(run).inputs(wanted), **forced)
    except ContractRejected as error:
        if arguments.out and arguments.command == "validate":
            write(Path(arguments.out), error.details)  # the report, which says what broke
        raise
    _write_parts(run, handoff, arguments)
    return _answer(run, wanted.name, handoff, arguments)


def _forced(arguments: argparse.Namespace) -> dict[str, str]:
    """The arguments that `promote --force` adds."""
    force, reason = getattr(arguments, "force", False), getattr(arguments, "reason", None)
    if force != (reason is not None):
        raise UsageError(
            "promote: --force needs --reason, and --reason needs --force.", remedy="Give both, or neither."
        )
    return {} if reason is None else {"force": reason}


def _write_parts(run: Run, handoff: Any, arguments: argparse.Namespace) -> None:
    """Write parts of a hand-off to files of their own: `train --curves`, `evaluate --metrics`."""
    if folder := getattr(arguments, "curves", None):
        for file, records in curves(logged_metrics(run.store, handoff)).items():
            write(Path(folder) / file, records)
        write_logger_files(run.store, handoff, Path(folder))
    if path := getattr(arguments, "metrics", None):
        write(Path(path), {name: metric.value for name, metric in handoff.metrics.items()})


def opened(arguments: argparse.Namespace, overrides: Sequence[str] = ()) -> Run:
    """The run of a command that leaves nothing under `runs/`, with overrides beside those of `--set`."""
    if arguments.window is not None and ".." not in arguments.window:
        raise UsageError(
            f"--window {arguments.window}: a stage command needs START..END, such as 2026-01-01..2026-02-01.",
            remedy="Give the same START..END to each stage command.",
        )
    return open_run(
        read_spec(arguments.spec, [*arguments.set, *overrides]),
        store_uri=arguments.store,
        options=RunOptions(window=arguments.window, fresh=getattr(arguments, "new", False), rehash=arguments.rehash),
        recorded=False,
    )


def _answer(run: Run, name: str, handoff: HandOff | None, arguments: argparse.Namespace) -> Answer:
    value: Mapping[str, object] = handoff.to_json() if handoff is not None else {"skipped": True}
    if arguments.out:
        write(Path(arguments.out), value)
    result = run.live.results[name]
    return Answer(f"{name} {result.status}: {result.sentence}", {"stage": result.to_json(), "handoff": value})


def write(path: Path, value: Any) -> None:
    """Write JSON to a file that the user names; UsageError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=2) + "\n")
        record_written(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", remedy="Name another file.") from error
