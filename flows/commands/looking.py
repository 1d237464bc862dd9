"""`status`, `plan`, `checkpoints`, `logs`, `show`, `prove`, `rollback`: what there is, and its proof."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.handoffs import RunReport, passed_over
from flows.commands.guard import Answer, log
from flows.commands.lines import answer as report_answer
from infra import audit, registry
from infra.store import Store, layout
from tasks.checkpoints import checkpoints_of
from tasks.logs import logs_of
from tasks.planning import plan as plan_run
from tasks.promote import rollback as roll_back
from tasks.proof import Link, find_version
from tasks.proof import prove as prove_version
from tasks.report import latest_report
from tasks.run import known_store_list, open_run, reopen_run

_BYTES = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)]
# Of each rank, where no rank is named.
LOG_LINES = 20
_SECONDS = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)]


def plan(arguments: argparse.Namespace) -> Answer:
    """The `plan` command."""
    run = open_run(
        arguments.spec,
        window=arguments.window,
        overrides=arguments.set,
        store_uri=arguments.store,
        rehash=arguments.rehash,
        recorded=False,
    )
    steps = plan_run(run)
    return Answer("\n".join(step.line for step in steps), {"stages": [vars(step) for step in steps]})


def status(arguments: argparse.Namespace) -> Answer:
    """The `status` command."""
    from infra.orchestrator.server import server_status

    server = server_status()
    lines = [f"server    {server.ui_url if server else 'not running (`trainwright up` starts it)'}"]
    value: dict[str, Any] = {"server": server.ui_url if server else None, "stores": []}
    for store in known_store_list(arguments.store):
        runs = [_run_line(store, run_id) for run_id in store.list(layout.runs())[-10:]]
        models = _models(store)
        lines.append(f"store     {store.uri}")
        lines += [f"  model   {m['name']}@{m['alias']} is version {m['version']}" for m in models]
        lines += [f"  run     {one['run_id']}  {one['pipeline']:<16} {one['verdict']}" for one in runs]
        value["stores"].append({"uri": store.uri, "runs": runs, "models": models})
    return Answer("\n".join(lines), value)


def checkpoints(arguments: argparse.Namespace) -> Answer:
    """The `checkpoints` command."""
    run = reopen_run(arguments.run, arguments.store)
    training, found = checkpoints_of(run)
    now = datetime.now(UTC)
    ages = [(now - datetime.fromisoformat(one.written)).total_seconds() if one.written else None for one in found]
    lines = [f"{training} of run {run.run_id} has {len(found)} checkpoint{'s' if len(found) != 1 else ''}"]
    for one, age_s in zip(found, ages, strict=True):
        size = "" if one.bytes is None else in_words(one.bytes, _BYTES)
        age = "" if age_s is None else in_words(age_s, _SECONDS)
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(one.metrics.items()))
        chosen = " (handed over)" if one.handed_over else ""
        why = f": {one.reason}" if one.reason else ""
        lines.append(f"  step {one.step:>9,}  {size:>8}  {age:>7} old  {one.state}{chosen}{why}  {metrics}".rstrip())
    told = [{**one.to_json(), "age_s": age_s} for one, age_s in zip(found, ages, strict=True)]
    return Answer("\n".join(lines), {"run_id": run.run_id, "training": training, "checkpoints": told})


def logs(arguments: argparse.Namespace) -> Answer:
    """The `logs` command."""
    run = reopen_run(arguments.run, arguments.store)
    training, found = logs_of(run, arguments.rank)
    lines = [f"{training} of run {run.run_id}, generation {found[0].seat.generation}"]
    for one in found:
        seat = one.seat
        why = f"{seat.ended}: {seat.sentence}" if seat.sentence else seat.ended or "running"
        who = "no rank" if seat.rank is None else f"rank {seat.rank}"
        lines.append(f"--- {who} on node {seat.node} {seat.host}, step {seat.last_step:,}: {why}")
        kept = (one.text or "").splitlines()
        lines += kept if arguments.rank is not None else kept[-LOG_LINES:]
        if one.text is None:
            lines.append("(nothing of its log is kept yet)")
    told = [{**asdict(one.seat), "log": one.text} for one in found]
    return Answer("\n".join(lines), {"run_id": run.run_id, "training": training, "ranks": told})


def in_words(value: float, units: Sequence[tuple[str, float]]) -> str:
    """A figure in the largest unit of which it has at least one, such as `3.4 MB`."""
    unit, size = next(((unit, size) for unit, size in units if value >= size), units[-1])
    return f"{value / size:.3g} {unit}" if size > 1 else f"{value:.0f} {unit}"


def show(arguments: argparse.Namespace) -> Answer:
    """The `show` command: a run by its id, else a model by name, alias or version."""
    for store in known_store_list(arguments.store) if "@" not in arguments.name else ():
        if store.exists(layout.resolved(arguments.name)):
            report = latest_report(store, arguments.name)
            if report is None:
                run = reopen_run(arguments.name, arguments.store)
                return Answer(f"{run.run_id} of {run.spec.name} has not ended.", run.resolved.to_json())
            found = report_answer(report, arguments)
            return Answer(found.text, found.value)
    store = _store_with(arguments)
    version, alias = find_version(store, arguments.name)
    history = registry.history(store, version.name, alias) if alias else []
    checkpoint = version.checkpoint
    lines = [
        f"{version.name}{f'@{alias}' if alias else ''} is version {version.version}",
        f"  checkpoint  {checkpoint.ref.uri} (step {checkpoint.step:,}, {checkpoint.state})",
        f"  evaluation  {version.evaluation.uri}",
        *(f"  receipt     {receipt.sentence}" for receipt in history),
    ]
    return Answer("\n".join(lines), {**version.to_json(), "alias": alias, "history": [r.to_json() for r in history]})


def prove(arguments: argparse.Namespace) -> Answer:
    """The `prove` command; exit code 6 if a byte differs anywhere."""

    def say(link: Link) -> None:
        size = f"{link.files} files, {link.bytes:,} bytes"
        log.info("ok  %-11s %s  %s, id %s", link.kind, link.uri, size, link.id[:16])

    proof = prove_version(_store_with(arguments), arguments.name, say)
    lines = [f"{proof.name} version {proof.version}: {len(proof.links)} sealed parts read again, every byte as sealed."]
    lines += [f"  raw file re-hashed: {uri}" for uri in proof.raw_checked]
    lines += [f"  raw file not there any more: {uri}" for uri in proof.gone]
    lines += [f"  {uri} was trained{passed_over(spans)}" for uri, spans in proof.skipped.items()]
    if proof.external:
        lines.append("  the data is external: it was read by the user's data module and is not part of the proof")
    return Answer("\n".join(lines), proof.to_json())


def rollback(arguments: argparse.Namespace) -> Answer:
    """The `rollback` command."""
    model, _, alias = arguments.name.partition("@")
    store = _store_with(arguments)
    commit, dirty = audit.revision(Path.cwd())
    provenance = {
        "parents": [],
        "run_id": f"rollback-{secrets.token_hex(4)}",
        "code": {"commit": commit, "dirty": dirty},
        "started": audit.now(),
        "finished": audit.now(),
        "actor": audit.actor(),
        "trigger": "cli",
        "tags": {},
    }
    receipt = roll_back(store, model, alias or "champion", arguments.to, provenance)
    return Answer(receipt.sentence, receipt.to_json())


def _store_with(arguments: argparse.Namespace) -> Store:
    """The store that has the named model, of those known here."""
    model = arguments.name.partition("@")[0]
    stores = known_store_list(arguments.store)
    for store in stores:
        if store.list(layout.models(model)):
            return store
    looked = ", ".join(store.uri for store in stores) or "none"
    raise UsageError(f"No model {model} in the stores known here ({looked}).", remedy="Name its store with --store.")


def _run_line(store: Store, run_id: str) -> dict[str, Any]:
    report: RunReport | None = latest_report(store, run_id)
    if report is not None:
        return {"run_id": run_id, "pipeline": report.pipeline, "verdict": report.verdict}
    try:
        name = store.read_json(layout.resolved(run_id))["spec"]["name"]
    except FileNotFoundError:  # it was stopped before it was resolved
        name = "?"
    return {"run_id": run_id, "pipeline": name, "verdict": "unfinished"}


def _models(store: Store) -> list[dict[str, Any]]:
    return [{"name": model, "alias": alias, "version": version} for model, alias, version in registry.aliases(store)]
