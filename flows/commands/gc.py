"""`gc`: deletes what nothing in a store refers to any more, or lists what it would delete."""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from data_contracts.errors import UsageError
from flows.commands.guard import Answer, log
from infra import audit
from infra.garbage import DAY_S, Collected, Deletion, Limits, collect
from infra.quantities import size
from infra.store import Store
from tasks.costs.months import keep_months
from tasks.run.run import known_store_list


def gc(arguments: argparse.Namespace) -> Answer:
    """The `gc` command."""
    if not (arguments.keep_days >= 0 and arguments.grace_hours >= 0):  # NaN is neither
        raise UsageError("gc: --keep-days and --grace-hours cannot be negative.", remedy="Give 0 or more.")
    limits = Limits(keep_s=arguments.keep_days * DAY_S, grace_s=arguments.grace_hours * 3600)

    def say(one: Deletion) -> None:
        log.info("deleted %s", one.item.uri)

    store = _store(arguments.store)
    if not arguments.dry_run:
        # The costs of deleted runs are kept.
        keep_months(store, datetime.now(UTC), timedelta(days=min(arguments.keep_days, timedelta.max.days)))
    done = collect(store, by=audit.actor(), limits=limits, dry_run=arguments.dry_run, on_gone=say)
    text = _table(store, done, arguments.dry_run)
    value = {"store": store.uri, "dry_run": arguments.dry_run} | done.to_json()
    return Answer(text, value, line=text.splitlines()[-1])


def _store(uri: str | None) -> Store:
    """The named store, or the one in this folder: a store that was only used before is never cleaned."""
    if uri is None and not Path(".trainwright").is_dir():
        raise UsageError("There is no store in this folder (.trainwright).", remedy="Name one with --store.")
    return known_store_list(uri or ".trainwright")[0]


def _table(store: Store, done: Collected, dry_run: bool) -> str:
    lines = [f"{one.item.kind:<11} {size(one.item.bytes):>12}  {one.item.uri}  ({one.why})" for one in done.deleted]
    for left in done.leftovers:
        kind = "upload" if left.upload_id else "draft"
        lines.append(f"{kind:<11} {size(left.bytes):>12}  {left.path}  (unfinished)")
    lines += [f"stays                     {uri}  (claimed for use during the collection)" for uri in done.spared]
    counts = Counter(one.item.kind for one in done.deleted) + Counter({"leftover": len(done.leftovers)})
    what = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"
    verb = "would be deleted from" if dry_run else "deleted from"
    return "\n".join([*lines, f"{what} {verb} {store.uri}: {size(done.bytes)}; {done.kept} items stay."])
