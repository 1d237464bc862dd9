"""`affected`: the runs, versions and aliases that were made with a package; `--hold` puts the versions on hold."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.quoting import escaped
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
        lines += map(escaped, [f"{store.uri}:", *_lines(found), *held])
        value.append({"store": store.uri, **asdict(found), "held": held})
    return Answer("\n".join(lines) or "No store is known on this machine; name one with --store.", {"stores": value})


def _hold(store: Store, found: Affected, reason: str) -> list[str]:
    """Put the affected versions of each model on hold for all its aliases, also those that have ended."""
    held = []
    for model, alias, _ in registry.aliases(store, ended=True):
        checkpoints = {one.checkpoint_id: one.version for one in found.versions if one.model == model}
        about = provenance_of("affected")
        if receipt := hold(store, model, alias, checkpoints, found.requirement, reason, about):
            held.append(receipt.sentence)
    return held


def _lines(found: Affected) -> list[str]:
    return [
        f"made with {found.requirement}: {len(found.aliases):,} aliases, {len(found.versions):,} versions of models, "
        f"{len(found.runs):,} runs",
        *(f"  alias    {model}@{alias} is version {number}" for model, alias, number in found.aliases),
        *(f"  version  {one.model}@{one.version}: {', '.join(one.packages)}" for one in found.versions),
        *(f"  run      {run_id}: {', '.join(packages)}" for run_id, packages in found.runs.items()),
        f"not known: {len(found.unknown_versions):,} versions of models, {len(found.unknown_runs):,} runs",
        *(f"  version  {one.model}@{one.version}" for one in found.unknown_versions),
        *(f"  run      {run_id}" for run_id in found.unknown_runs),
    ]
