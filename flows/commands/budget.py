"""`budget`, `policy`: what is left of each budget, and which tags a spec must have; `apply` makes a new version."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.rules import Budgets, Kind, Policy, RulesVersion, shown
from data_contracts.times import iso_month
from flows.commands.guard import Answer
from flows.commands.tables import table
from infra.budgets import apply_rules, newest_rules, read_rules
from infra.signing.moves import configured_key
from infra.store import Store, layout
from infra.store.records import parsed
from tasks.budgets import BudgetBalance, balances_of_month, settle_all, settle_and_check
from tasks.run.run import known_store_list

# Of a budget for each run, the newest are shown.
_MOST_RUNS = 5
_HEAD = ["budget", "runs", "period", "spent", "reserved", "left", "limit", "unit", "at limit"]


def budget(arguments: argparse.Namespace) -> Answer:
    """The `budget` command."""
    if arguments.action == "apply":
        return _apply_budgets(arguments)
    wanted = _month(arguments.month)
    lines: list[str] = []
    value: list[dict[str, Any]] = []
    for store in known_store_list(arguments.store):
        version = newest_rules(store, "budgets")
        found, more = balances_of_month(store, wanted, None if arguments.json else _MOST_RUNS)
        if version is not None:
            lines += [f"{store.uri}: {_of(version)}", table(_HEAD, [_row(one) for one in found], _HEAD[3:7])]
            lines += [f"{name}: … and {count} earlier runs (all of them with --json)" for name, count in more.items()]
            lines.append("")
        value.append({"store": store.uri, **_in_force(version), "budgets": [one.to_json() for one in found]})
    nothing = "No budget is set; `trainwright budget apply FILE` sets them."
    return Answer("\n".join(lines).rstrip() or nothing, {"month": wanted, "stores": value})


def policy(arguments: argparse.Namespace) -> Answer:
    """The `policy` command."""
    if arguments.action == "apply":
        store = _store(arguments)
        content = read_rules(_file(arguments), Policy)
        made = apply_rules(store, "policy", content.model_dump(mode="json"))
        return Answer(f"{store.uri}: {_of(made)}; it holds for every spec from now on", _json(made))
    lines: list[str] = []
    value: list[dict[str, Any]] = []
    for store in known_store_list(arguments.store):
        version = newest_rules(store, "policy")
        if version is not None:
            tags = Policy.model_validate(version.content).tags
            rows = [[name, allowed if allowed == "any" else ", ".join(allowed)] for name, allowed in tags.items()]
            lines += [f"{store.uri}: {_of(version)}", table(["tag", "values"], rows), ""]
        value.append({"store": store.uri, **_in_force(version)})
    nothing = "No policy is set; `trainwright policy apply FILE` sets one."
    return Answer("\n".join(lines).rstrip() or nothing, {"stores": value})


def _apply_budgets(arguments: argparse.Namespace) -> Answer:
    store = _store(arguments)
    content = read_rules(_file(arguments), Budgets)
    unknown = settle_and_check(store, content)
    made = apply_rules(store, "budgets", content.model_dump(mode="json", exclude_none=True))
    # Executions that ended meanwhile did not know of it.
    settle_all(store, content)
    said = f"{store.uri}: {_of(made)}; it holds from now on, for running runs, too"
    return Answer("\n".join([said, *unknown]), {**_json(made), "unknown": unknown})


def _file(arguments: argparse.Namespace) -> Path:
    if arguments.file is None:
        raise UsageError(
            f"{arguments.command} apply: no file is named.", remedy=f"trainwright {arguments.command} apply FILE"
        )
    return Path(arguments.file)


def _store(arguments: argparse.Namespace) -> Store:
    """The named store, or the only known one."""
    stores = known_store_list(arguments.store)
    if len(stores) == 1:
        return stores[0]
    known = ", ".join(store.uri for store in stores) or "none"
    raise UsageError(f"{arguments.command} apply: which store? Known are: {known}.", remedy="Name it with --store.")


def _month(text: str | None) -> str:
    now = datetime.now(UTC).strftime("%Y-%m")
    if text is None:
        return now
    try:
        wanted = iso_month(text)
    except ValueError as error:
        raise UsageError(f"--month: {error}.") from error
    if wanted > now:
        raise UsageError(f"--month: {text} lies in the future.", remedy="Nothing is spent there yet.")
    return wanted


def _of(version: RulesVersion) -> str:
    kind: Kind = version.kind
    checked = "signed" if configured_key() is not None else "with a signature that is not checked here, without the key"
    signed = f", {checked}" if version.signature is not None else ""
    return f"version {version.n} of the {kind}, applied by {version.by} at {version.at[:16]} UTC{signed}"


def _in_force(version: RulesVersion | None) -> dict[str, Any]:
    """The version that holds, also under the key that it had in earlier releases."""
    value = None if version is None else _json(version)
    return {"version": value, "edition": value}


def _json(version: RulesVersion) -> dict[str, Any]:
    value, path = version.to_json(), layout.rules_version(version.kind, version.n)
    signed = version.signature
    key = None if signed is None else parsed(path, lambda one: str(one["signatures"][0]["keyid"]), signed)
    return {**value, "signature": key}


def _row(one: BudgetBalance) -> list[str]:
    limit = one.budget.limit
    figures = [shown(amount) for amount in (one.spent, one.reserved, one.left, limit.value)]
    return [one.name, one.budget.runs, one.period, *figures, limit.unit, one.budget.at_limit]
