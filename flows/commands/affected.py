"""`affected`: the runs, versions and aliases that were made with a package; `--hold` puts the versions on hold."""

from __future__ import annotations

import argparse
from typing import Any

from data_contracts.errors import UsageError
from flows.commands.aliases import provenance_of
from flows.commands.guard import Answer
from infra.models import registry
from infra.store import Store
from tasks.queries.affected import Affected
from tasks.queries.affected import affected as find_affected
from tasks.run.run import known_store_list
from tasks.stages.decisions.rollback import checked_reason, hold


def affected(arguments: argparse.Namespace) -> Answer:
    """The `affected` command, for every known store."""
    if arguments.hold:
        checked_reason(arguments.reason)
    elif arguments.reason:
        raise UsageError("affected: --reason was given without --hold.", remedy="Add --hold, or leave it out.")
    lines: list[str] = []
    value: list[dict[str, Any]] = []
    for store in known_store_list(arguments.store):
        found = find_affected(store, arguments.package)
        held = _hold(store, found, arguments.reason) if arguments.hold else []
        lines += [*_lines(store, found), *held, ""]
        value.append({"store": store.uri, **found.to_json(), "held": held})
    return Answer(
        "\n".join(lines).rstrip() or "No store is known on this machine; name one with --store.", {"stores": value}
    )


def _hold(store: Store, found: Affected, reason: str) -> list[str]:
    """Put the affected versions of each model on hold for all its aliases, also those that have ended."""
    checkpoints: dict[str, dict[str, int]] = {}
    for one in found.versions:
        checkpoints.setdefault(one.model, {})[one.checkpoint_id] = one.version
    receipts = [
        hold(store, model, alias, checkpoints[model], found.requirement, reason, provenance_of("affected"))
        for model, alias, _ in registry.aliases(store, ended=True)
        if model in checkpoints
    ]
    return [one.sentence for one in receipts if one is not None]


def _lines(store: Store, found: Affected) -> list[str]:
    counts = {"run": len(found.runs), "version": len(found.versions), "alias": len(found.aliases)}
    lines = [f"{store.uri}: made with {found.requirement}: {_counts(counts)}"]
    lines += [f"  alias    {model}@{alias} is version {number}" for model, alias, number in found.aliases]
    lines += [f"  version  {one.model}@{one.version}: {', '.join(one.packages)}" for one in found.versions]
    lines += [f"  run      {run_id}: {', '.join(packages)}" for run_id, packages in found.runs.items()]
    if found.unknown_runs or found.unknown_versions:
        counts = {"run": len(found.unknown_runs), "version": len(found.unknown_versions)}
        lines.append(f"not known, because the packages were not written down: {_counts(counts)}")
        lines += [f"  version  {one.model}@{one.version}" for one in found.unknown_versions]
        lines += [f"  run      {run_id}" for run_id in found.unknown_runs]
    return lines


def _counts(numbers: dict[str, int]) -> str:
    plural = {"alias": "aliases"}
    return ", ".join(f"{n:,} {one if n == 1 else plural.get(one, f'{one}s')}" for one, n in numbers.items())
