"""`drift`: compares a pipeline's raw data with earlier data, without a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from data_contracts.errors import ContractRejected, UsageError
from data_contracts.load import load_spec
from data_contracts.records import DriftReport
from flows.commands.guard import Answer
from flows.commands.stages import opened, write
from flows.commands.tables import table
from tasks.stages.artifacts import DRIFT_HEAD, drift_cells
from tasks.stages.contract_check import drift_rejects
from tasks.stages.validate import contract_key, find_report, make_report

# Columns that did not move are counted, not listed; of the others at most so many.
SHOWN = 20


def drift(arguments: argparse.Namespace) -> Answer:
    """The `drift` command: exit code 3 if the data has moved as far as `fail_on` says."""
    spec = load_spec(Path(arguments.spec).resolve(), arguments.set)
    if spec.contract is None:
        raise UsageError("The data is external, so it has no profile.", remedy="Name a spec with data of its own.")
    against = arguments.against or ("champion" if spec.contract.drift is None else None)
    given = {"against": against, "fail_on": arguments.fail_on}
    run = opened(arguments, [f"contract.drift.{name}={json.dumps(value)}" for name, value in given.items() if value])
    key = contract_key(run)
    assert key is not None
    done = find_report(run, key) or make_report(run, key)
    report = done.handoff
    assert report is not None
    assert report.drift is not None
    value = {**report.drift.to_json(), "verdict": report.drift.verdict}
    if arguments.out:
        write(Path(arguments.out), value)
    rejected = drift_rejects(run, report.drift)
    error = done.error if rejected and isinstance(done.error, ContractRejected) else None
    return Answer(as_text(report.drift), value, 3 if rejected else 0, error, line=_line(report.drift))


def as_text(report: DriftReport) -> str:
    """The comparison for a person: one sentence, and a table of the columns that moved most."""
    moved = [one for one in report.columns if one.verdict != "same"]
    rows = [drift_cells(one) for one in moved[:SHOWN]]
    lines = [_line(report)]
    if report.columns:
        lines.append(f"rows then {report.rows[0]:,}, now {report.rows[1]:,}")
    if rows:
        lines += ["", table(DRIFT_HEAD, rows, ("PSI", "KS"))]
    if len(moved) > SHOWN:
        lines.append(f"… and {len(moved) - SHOWN} more (all of them with --json)")
    return "\n".join(lines)


def _line(report: DriftReport) -> str:
    return f"{report.head[0].upper()}{report.head[1:]}."
