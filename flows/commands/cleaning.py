"""`gc`: deletes what nothing in a store reaches any more, or says what that would be."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from data_contracts.errors import UsageError
from flows.commands.guard import Answer, log
from infra import audit
from infra.gc import Collected, Condemned, Limits, collect
from infra.gc.things import DAY_S
from infra.store import Store
from tasks.run import known_store_list

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def gc(arguments: argparse.Namespace) -> Answer:
    """The `gc` command."""
    if arguments.keep_days < 0 or arguments.grace_hours < 0:
        raise UsageError("--keep-days and --grace-hours cannot be negative.")
    limits = Limits(keep_s=arguments.keep_days * DAY_S, grace_s=arguments.grace_hours * 3600)

    def say(one: Condemned) -> None:
        log.info("deleted %s", one.thing.uri)

    store = _store(arguments.store)
    done = collect(store, by=audit.actor(), limits=limits, dry_run=arguments.dry_run, on_gone=say)
    return Answer(
        _table(store, done, arguments.dry_run), {"store": store.uri, "dry_run": arguments.dry_run} | done.to_json()
    )


def size(num_bytes: int) -> str:
    """A number of bytes for a person."""
    value, unit = float(num_bytes), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.{1 if unit else 0}f} {UNITS[unit]}"


def _store(uri: str | None) -> Store:
    """The store that is named, or the one here: nothing is ever deleted from a store that was only used before."""
    if uri is None and not Path(".trainwright").is_dir():
        raise UsageError("There is no store here.", remedy="Name one with --store.")
    return known_store_list(uri or ".trainwright")[0]


def _table(store: Store, done: Collected, dry_run: bool) -> str:
    lines = [f"{one.thing.kind:<11} {size(one.thing.bytes):>12}  {one.thing.uri}  ({one.why})" for one in done.things]
    for left in done.leftovers:
        kind = "upload" if left.upload_id else "draft"
        lines.append(f"{kind:<11} {size(left.bytes):>12}  {left.path}  (begun and never ended)")
    lines += [f"stays                     {uri}  (taken up for use meanwhile)" for uri in done.spared]
    counts = Counter(one.thing.kind for one in done.things) + Counter({"leftover": len(done.leftovers)})
    what = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"
    verb = "would be deleted from" if dry_run else "deleted from"
    return "\n".join([*lines, f"{what} {verb} {store.uri}: {size(done.bytes)}; {done.kept} things stay."])
