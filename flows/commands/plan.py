"""`plan`: shows what a run would reuse, and what it would need, before anything is booked."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_contracts.pipeline_spec import PipelineSpec
from flows.commands.guard import Answer
from flows.commands.plan_page import estimate_lines
from flows.stages import stages
from infra.quantities import BYTES, in_words
from tasks.budgets import balances_of_spec
from tasks.estimates.estimate import estimate
from tasks.queries.plan import plan as plan_run
from tasks.run.resolve import RunOptions, chosen_code, look_at_past_checkpoints
from tasks.run.run import open_run

# For the packed files, and for the files that are left out.
PLAN_LINES = 30


def plan(arguments: argparse.Namespace) -> Answer:
    """The `plan` command."""
    run = open_run(
        arguments.spec,
        overrides=arguments.set,
        store_uri=arguments.store,
        options=RunOptions(window=arguments.window, rehash=arguments.rehash),
        recorded=False,
    )
    steps = plan_run(run, stages())
    lines = [step.line for step in steps]
    value: dict[str, Any] = {"stages": [vars(step) for step in steps]}
    ahead = [step.name for step in steps if step.action in ("run", "resume")]
    needed = None if arguments.no_estimate else estimate(run, ahead)
    if needed is not None:
        lines += estimate_lines(needed)
        value["estimate"] = needed.to_json()
    spacing = look_at_past_checkpoints(run.spec, run.store)
    if spacing.is_measured or run.resolved.checkpoint is not None:
        lines += ["", f"interval  {spacing.line}"]
    value["checkpoint"] = asdict(spacing)
    budgets = balances_of_spec(run.store, run.spec)
    if budgets:
        lines += ["", *(f"budget    {one.sentence}" for one in budgets)]
        value["budgets"] = [one.to_json() for one in budgets]
    chosen = chosen_code(run.resolved, run.store)
    packed = {name: path.stat().st_size for name, path in sorted(chosen.packed.items())}
    left_out = [asdict(one) for one in chosen.left_out]
    files = "1 file" if len(packed) == 1 else f"{len(packed):,} files"
    lines += ["", f"code      packs {files}, {in_words(sum(packed.values()), BYTES)}"]
    # Of the spec and the files that it is made of, each stage counts the fields that it uses.
    of_spec = {Path(arguments.spec).resolve(), *((run.root / name).resolve() for name in _parts_of(run.spec))}
    uncounted = {name for name in packed.keys() - chosen.counted if chosen.packed[name].resolve() not in of_spec}
    note = ": if your code reads it, name it in code.include, otherwise its changes do not lead to a new training"
    lines += _first(
        [f"  packed    {in_words(size, BYTES):>8}  {name}{note * (name in uncounted)}" for name, size in packed.items()]
    )
    lines += _first([f"  left out  {in_words(one.bytes, BYTES):>8}  {one.path}: {one.why}" for one in chosen.left_out])
    listed = [{"path": name, "bytes": size, "counted": name not in uncounted} for name, size in packed.items()]
    return Answer("\n".join(lines), {**value, "code": {"packed": listed, "left_out": left_out}})


def _parts_of(spec: PipelineSpec) -> list[str]:
    """The files from which a spec takes its Lightning config, its suite and its packages."""
    parts = [spec.train.lightning, spec.contract.suite if spec.contract else None]
    parts += [one.contract.suite for one in spec.evaluate.sets.values() if not isinstance(one.contract, str)]
    later = [spec.contract.features, spec.contract.predictions] if spec.contract else []
    parts += [one.suite for one in later if one is not None]
    if spec.environment is not None:  # what it resolves to is counted
        parts += [f"{spec.environment.file}{name}" for name in ("", "/uv.lock", "/pyproject.toml")]
    return [part for part in parts if isinstance(part, str)]


def _first(lines: list[str]) -> list[str]:
    """The first lines of a list, and a line with the number of further lines in `--json`."""
    more = len(lines) - PLAN_LINES
    return [*lines[:PLAN_LINES], *([f"  … and {more} more (all of them with --json)"] if more > 0 else [])]
