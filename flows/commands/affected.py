"""`affected`: the runs, versions and aliases that were made with a package; `--hold` puts the versions on hold."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from data_contracts.errors import UsageError
from data_contracts.quoting import escaped
from flows.commands.aliases import provenance_of
from flows.commands.guard import Answer
from infra.models import registry
from infra.store import Store
from tasks.queries.affected import Affected
from tasks.queries.affected import affected as find_affected
from tasks.run.run import known_store_list
from tasks.stages.rollback import checked_reason, hold


def affected(arguments: argparse.Namespace) -> Answer:
    """The `affected` command, for every known store."""
    if arguments.hold:
        checked_reason(arguments.reason)
    elif arguments.reason:
        raise UsageError("affected: --reason was given without --hold.", remedy="Add --hold, or leave it out.")
    lines: list[str] = []
    value: list[dict[str, object]] = []
    for store in known_store_list(arguments.store):
        result = find_affected(store, arguments.package)
        sentences = _hold(store, result, arguments.reason) if arguments.hold else []
        lines += map(escaped, [f"{store.uri}:", *_lines(result), *sentences])
        value.append({"store": store.uri, **asdict(result), "held": sentences})
    return Answer("\n".join(lines) or "No store is known on this machine; name one with --store.", {"stores": value})


def _hold(store: Store, result: Affected, reason: str) -> list[str]:
    """Put the affected versions of each model on hold for all its aliases, also those that have ended."""
    sentences = []
    for model, alias, _ in registry.aliases(store, ended=True):
        checkpoints = {version.checkpoint_id: version.version for version in result.versions if version.model == model}
        about = provenance_of("affected")
        if receipt := hold(store, model, alias, checkpoints, result.requirement, reason, about):
            sentences.append(receipt.sentence)
    return sentences


def _lines(result: Affected) -> list[str]:
    return [
        f"made with {result.requirement}: {len(result.aliases):,} aliases, {len(result.versions):,} versions of "
        f"models, {len(result.runs):,} runs",
        *(f"  alias    {model}@{alias} is version {number}" for model, alias, number in result.aliases),
        *(
            f"  version  {version.model}@{version.version}: {', '.join(version.packages)}"
            for version in result.versions
        ),
        *(f"  run      {run_id}: {', '.join(packages)}" for run_id, packages in result.runs.items()),
        f"not known: {len(result.unknown_versions):,} versions of models, {len(result.unknown_runs):,} runs",
        *(f"  version  {version.model}@{version.version}" for version in result.unknown_versions),
        *(f"  run      {run_id}" for run_id in result.unknown_runs),
    ]
