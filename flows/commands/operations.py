"""`reap`, `sensor`, `nodes`, `drain`, `restore`, `gc`, `budget`, `policy`: keep runs going, stores small, and budgets.

`reap` finds runs whose process died without a report, and has them resumed. `sensor` looks whether data has arrived,
or sets the cursor of a pipeline's sensor. `nodes`, `drain` and `restore` show what a store knows of nodes, and say
which of them no training may use. `gc` deletes what nothing in a store refers to any more, or lists what it would
delete. `budget` shows what is left of each budget, and `policy` which tags a spec must have; `budget apply` and
`policy apply` make a new version.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from data_contracts.canonical import iso_month
from data_contracts.errors import NodeLost, UsageError
from data_contracts.load import load_spec
from data_contracts.messages.commands import Reaped
from data_contracts.rules import Budgets, Policy, RulesVersion, shown
from flows.commands.guard import Answer, log
from flows.commands.server import connect
from flows.commands.terminal import table
from flows.features import call
from infra import audit
from infra.budgets import apply_rules, newest_rules, read_rules
from infra.garbage import DAY_S, Collected, Deletion, Limits, collect
from infra.orchestrator.resuming import start_lost_again
from infra.processes.processes import marked_env, module_command, new_mark, run_to_end
from infra.quantities import size
from infra.records.nodes import KINDS, NodeRecord, decide, has_failures, nodes_of
from infra.signing.signatures import configured_key
from infra.store import Store, layout
from infra.store.records import parsed
from tasks.budgets import BudgetBalance, balances_of_month, settle_all, settle_and_check
from tasks.run.executions import reap_apart, reap_stores
from tasks.run.run import known_store_list, not_found, open_spec_store
from tasks.schedules import sensor_of
from tasks.stages.rollback import checked_reason

# Of a budget for each run, the newest are shown.
_MOST_RUNS = 5
_BUDGET_HEAD = ["budget", "runs", "period", "spent", "reserved", "left", "limit", "unit", "at limit"]
_NODES_HEAD = ["node", "state", "failures", "stragglers", "corrupt replicas", "last", "why"]


def reap(arguments: argparse.Namespace) -> Answer:
    """The `reap` command: as the deployment `reap/POOL` does; without a worker, runs are resumed here, one by one."""
    stores = known_store_list(arguments.store)
    connect("cli")
    from flows.reap import summary, tell_ends

    reaped, away = reap_stores(stores, lambda store: reap_apart(store, arguments.pool, here=True))
    tell_ends(stores)
    begun = start_lost_again()
    value = {
        "runs": [asdict(one) for one in reaped],
        "away": [error.message for error in away],
        "begun": begun,
    }
    said, worst = summary(reaped, list(away), begun), max((error.exit_code for error in away), default=0)
    for one in reaped:
        if one.what == "here":
            worst = max(worst, _resume(one))
        worst = max(worst, {"left": 5, "lost": 6, "ended": 5}.get(one.what, 0))
    return Answer(said, value, worst)


def _resume(reaped: Reaped) -> int:
    """Carry out a run in a process of its own, which may die without ending this one; returns its exit code."""
    mark = new_mark()
    command = module_command(
        "infra.processes.tied_to_parent", "flows.cli", "resume", reaped.run_id, "--quiet", "--store", reaped.store
    )
    code = run_to_end(command, mark, marked_env(mark), stdout=sys.stderr.buffer)
    if code is None or code < 0:
        how = "does not end" if code is None else f"was ended by {signal.Signals(-code).name}"
        log.error("%s: the process that resumed it %s; it is left for now.", reaped.run_id, how)
        return NodeLost.exit_code
    return code


def sensor(arguments: argparse.Namespace) -> Answer:
    """The `sensor` command: says what a look sees, and starts nothing; with `--reset`, sets the cursor."""
    path = Path(arguments.spec).resolve()
    spec = load_spec(path, arguments.set)
    watched = sensor_of(spec, path.parent, open_spec_store(spec, path.parent, arguments.store))
    if arguments.reset is not None:
        said = watched.reset(arguments.reset)
        return Answer(said, {"reset": arguments.reset, "sentence": said})
    look = watched.look()
    return Answer(look.sentence, asdict(look))


def nodes(arguments: argparse.Namespace) -> Answer:
    """The `nodes` command; a figure counts what happened since the node was last restored."""
    lines: list[str] = []
    value: list[dict[str, object]] = []
    for store in known_store_list(arguments.store or arguments.place):
        if found := nodes_of(store):
            lines += [f"{store.uri}", table(_NODES_HEAD, [_node_row(one) for one in found], right=_NODES_HEAD[2:5]), ""]
        value.append({"store": store.uri, "nodes": [_node_json(one) for one in found]})
    return Answer(
        "\n".join(lines).rstrip() or "Nothing went wrong on any node, and none is drained.", {"stores": value}
    )


def drain(arguments: argparse.Namespace) -> Answer:
    """The `drain` command."""
    reason = checked_reason(arguments.reason)
    store = _store_of_node(arguments)
    decision = decide(store, arguments.node, drained=True, reason=reason)
    sentence = f"No training of {store.uri} uses the node {arguments.node} from its next generation on"
    if not has_failures(store, arguments.node):
        # The name may be mistyped: nothing that went wrong was recorded of a node of this name.
        sentence += "; nothing is recorded of it yet, so check the name"
    return Answer(sentence, decision.to_json())


def restore(arguments: argparse.Namespace) -> Answer:
    """The `restore` command; UsageError if the node is not drained."""
    decision = decide(_store_of_node(arguments), arguments.node, drained=False, reason=checked_reason(arguments.reason))
    return Answer(f"The node {arguments.node} takes part again, and its figures begin anew", decision.to_json())


def _store_of_node(arguments: argparse.Namespace) -> Store:
    """The named store, the known store that has a record of the node, or the only known store."""
    stores = known_store_list(arguments.store)
    having = [store for store in stores if layout.node_folder(arguments.node) in store.list(layout.NODES)]
    if len(having) == 1 or (not having and len(stores) == 1):
        return (having or stores)[0]
    if not having:
        raise not_found(f"node {arguments.node}", stores)
    raise UsageError(
        f"{len(having)} stores know the node {arguments.node}: {', '.join(store.uri for store in having)}.",
        remedy="Name one with --store; a store's own trainings are all that it keeps the node out of.",
    )


def _node_row(node: NodeRecord) -> list[str]:
    last = node.failures[-1] if node.failures else None
    why = node.standing.reason if node.is_drained and node.standing else (last.sentence if last else "")
    figures = [str(node.count(kind)) for kind in KINDS]
    return [node.name, "drained" if node.is_drained else "in use", *figures, last.at[:16] if last else "", why]


def _node_json(node: NodeRecord) -> dict[str, object]:
    return {
        "node": node.name,
        "drained": node.is_drained,
        "since_restored": {kind: node.count(kind) for kind in KINDS},
        "ever": {kind: node.count(kind, ever=True) for kind in KINDS},
        "standing": node.standing.to_json() if node.standing else None,
        "mishaps": [one.to_json() for one in node.failures],
    }


def gc(arguments: argparse.Namespace) -> Answer:
    """The `gc` command."""
    if not (arguments.keep_days >= 0 and arguments.grace_hours >= 0):  # NaN is neither
        raise UsageError("gc: --keep-days and --grace-hours cannot be negative.", remedy="Give 0 or more.")
    limits = Limits(keep_s=arguments.keep_days * DAY_S, grace_s=arguments.grace_hours * 3600)
    store = _swept_store(arguments.store)
    done = cleaned(store, limits, dry_run=arguments.dry_run)
    text = _kinds_table(store, done, arguments.dry_run)
    return Answer(text, {"store": store.uri, "dry_run": arguments.dry_run} | done.to_json(), line=text.splitlines()[-1])


def cleaned(store: Store, limits: Limits, *, dry_run: bool = False) -> Collected:
    """Delete what nothing in a store refers to any more, each item with a line in the log; raises as `collect`."""
    if not dry_run:
        # The costs of deleted runs are kept.
        keep = timedelta(days=min(limits.keep_s / DAY_S, timedelta.max.days))
        call("collect", store, datetime.now(UTC), keep)
    return collect(store, by=audit.actor(), limits=limits, dry_run=dry_run, on_gone=_log_deletion)


def _log_deletion(deletion: Deletion) -> None:
    log.info("deleted %s", deletion.item.uri)


def _swept_store(uri: str | None) -> Store:
    """The named store, or the one in this folder: a store that was only used before is never cleaned."""
    if uri is None and not Path(".trainwright").is_dir():
        raise UsageError("There is no store in this folder (.trainwright).", remedy="Name one with --store.")
    return known_store_list(uri or ".trainwright")[0]


def _kinds_table(store: Store, done: Collected, dry_run: bool) -> str:
    lines = [f"{one.item.kind:<11} {size(one.item.bytes):>12}  {one.item.uri}  ({one.why})" for one in done.deleted]
    for left in done.leftovers:
        kind = "upload" if left.upload_id else "draft"
        lines.append(f"{kind:<11} {size(left.bytes):>12}  {left.path}  (unfinished)")
    lines += [f"stays                     {uri}  (claimed for use during the collection)" for uri in done.spared]
    return "\n".join([*lines, what_went(store, done, dry_run=dry_run)])


def what_went(store: Store, done: Collected, *, dry_run: bool = False) -> str:
    """What a collection deleted, as one sentence."""
    counts = Counter(one.item.kind for one in done.deleted) + Counter({"leftover": len(done.leftovers)})
    what = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"
    verb = "would be deleted from" if dry_run else "deleted from"
    return f"{what} {verb} {store.uri}: {size(done.bytes)}; {done.kept} items stay."


def budget(arguments: argparse.Namespace) -> Answer:
    """The `budget` command."""
    if arguments.action == "apply":
        return _apply_budgets(arguments)
    wanted = _budget_month(arguments.month)
    lines: list[str] = []
    value: list[dict[str, object]] = []
    for store in known_store_list(arguments.store):
        version = newest_rules(store, "budgets")
        found, more = balances_of_month(store, wanted, None if arguments.json else _MOST_RUNS)
        if version is not None:
            lines += [
                f"{store.uri}: {_version_in_words(version)}",
                table(_BUDGET_HEAD, [_budget_row(one) for one in found], _BUDGET_HEAD[3:7]),
            ]
            lines += [f"{name}: … and {count} earlier runs (all of them with --json)" for name, count in more.items()]
            lines.append("")
        value.append({"store": store.uri, **_in_force(version), "budgets": [one.to_json() for one in found]})
    return Answer(
        "\n".join(lines).rstrip() or "No budget is set; `trainwright budget apply FILE` sets them.",
        {"month": wanted, "stores": value},
    )


def policy(arguments: argparse.Namespace) -> Answer:
    """The `policy` command."""
    if arguments.action == "apply":
        store = _rules_store(arguments)
        made = apply_rules(store, "policy", read_rules(_rules_file(arguments), Policy).model_dump(mode="json"))
        return Answer(
            f"{store.uri}: {_version_in_words(made)}; it holds for every spec from now on", _version_json(made)
        )
    lines: list[str] = []
    value: list[dict[str, object]] = []
    for store in known_store_list(arguments.store):
        version = newest_rules(store, "policy")
        if version is not None:
            tags = Policy.model_validate(version.content).tags
            rows = [[name, allowed if allowed == "any" else ", ".join(allowed)] for name, allowed in tags.items()]
            lines += [f"{store.uri}: {_version_in_words(version)}", table(["tag", "values"], rows), ""]
        value.append({"store": store.uri, **_in_force(version)})
    return Answer(
        "\n".join(lines).rstrip() or "No policy is set; `trainwright policy apply FILE` sets one.", {"stores": value}
    )


def _apply_budgets(arguments: argparse.Namespace) -> Answer:
    store = _rules_store(arguments)
    content = read_rules(_rules_file(arguments), Budgets)
    unknown = settle_and_check(store, content)
    made = apply_rules(store, "budgets", content.model_dump(mode="json", exclude_none=True))
    # Executions that ended meanwhile did not know of it.
    settle_all(store, content)
    said = f"{store.uri}: {_version_in_words(made)}; it holds from now on, for running runs, too"
    return Answer("\n".join([said, *unknown]), {**_version_json(made), "unknown": unknown})


def _rules_file(arguments: argparse.Namespace) -> Path:
    if arguments.file is None:
        raise UsageError(
            f"{arguments.command} apply: no file is named.", remedy=f"trainwright {arguments.command} apply FILE"
        )
    return Path(arguments.file)


def _rules_store(arguments: argparse.Namespace) -> Store:
    """The named store, or the only known one."""
    stores = known_store_list(arguments.store)
    if len(stores) == 1:
        return stores[0]
    known = ", ".join(store.uri for store in stores) or "none"
    raise UsageError(f"{arguments.command} apply: which store? Known are: {known}.", remedy="Name it with --store.")


def _budget_month(text: str | None) -> str:
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


def _version_in_words(version: RulesVersion) -> str:
    checked = "signed" if configured_key() is not None else "with a signature that is not checked here, without the key"
    signed = f", {checked}" if version.signature is not None else ""
    return f"version {version.n} of the {version.kind}, applied by {version.by} at {version.at[:16]} UTC{signed}"


def _in_force(version: RulesVersion | None) -> dict[str, object]:
    """The version that holds, also under the key that it had in earlier releases."""
    value = None if version is None else _version_json(version)
    return {"version": value, "edition": value}


def _version_json(version: RulesVersion) -> dict[str, object]:
    value, path = version.to_json(), layout.rules_version(version.kind, version.n)
    signed = version.signature
    key = None if signed is None else parsed(path, lambda one: str(one["signatures"][0]["keyid"]), signed)
    return {**value, "signature": key}


def _budget_row(balance: BudgetBalance) -> list[str]:
    limit = balance.budget.limit
    figures = [shown(amount) for amount in (balance.spent, balance.reserved, balance.left, limit.value)]
    return [balance.name, balance.budget.runs, balance.period, *figures, limit.unit, balance.budget.at_limit]
