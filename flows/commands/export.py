"""`export`: writes a model version to a folder, in a form that runs without Trainwright."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from data_contracts.errors import UsageError
from data_contracts.messages.commands import Tolerance
from flows.commands.guard import Answer
from flows.commands.queries import store_with
from tasks.export.export import Export
from tasks.export.export import export as export_model

_LICENSE = re.compile(r"([a-z0-9][a-z0-9.+-]{0,62})?")


def export(arguments: argparse.Namespace) -> Answer:
    """The `export` command."""
    tolerance = _tolerance(arguments.atol, arguments.rtol)
    if not _LICENSE.fullmatch(arguments.license):
        raise UsageError(
            "--license is not the id of a licence.",
            remedy="Use a model hub's name for it, such as apache-2.0 or other.",
        )
    folder = Path(arguments.dir)
    made = export_model(
        store_with(arguments), arguments.name, arguments.to, folder, tolerance, license_id=arguments.license
    )
    return Answer("\n".join(_lines(made, arguments.to)), {"folder": str(made.folder.absolute()), **made.record})


def _tolerance(atol: float | None, rtol: float | None) -> Tolerance | None:
    if atol is None and rtol is None:
        return None
    values = {"--atol": atol or 0.0, "--rtol": rtol or 0.0}
    for option, value in values.items():
        if not 0 <= value < float("inf"):
            raise UsageError(f"{option} {value} is not a number from 0.", remedy="Give a small number such as 1e-4.")
    return Tolerance(atol=values["--atol"], rtol=values["--rtol"])


def _lines(made: Export, target: str) -> list[str]:
    exported = made.exported
    lines = [f"{made.facts.title}, exported to {made.folder} ({target})"]
    if exported.inputs:
        names = [one.name for one in exported.inputs]
        shown = names if len(names) <= 8 else [*names[:3], f"… ({len(names):,} in all)"]
        lines.append(f"  inputs   {', '.join(shown)}")
        lines.append(f"  outputs  {', '.join(one.name for one in exported.outputs)}")
        largest = max(one.largest for one in exported.agreements)
        lines.append(
            f"  compared with the checkpoint on {exported.sample:,} rows: the largest difference is {largest:.3g}"
        )
    if exported.transform is False:
        lines.append(f"  train.transform is not included: {exported.transform_fault}")
    return [*lines, f"  {made.folder / 'README.md'} is its page"]
