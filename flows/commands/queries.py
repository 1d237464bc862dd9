"""`status`, `checkpoints`, `logs`, `show`, `prove`, `history`: show what exists, and prove it.

`status --html` writes the page of a day as one HTML file, which opens offline. `history` says who moved an alias, when
and why, with approvals, the notes of its rollbacks and what is on hold.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from data_contracts.alias_moves import CanaryNote, Hold, Incident
from data_contracts.canonical import is_name, readable
from data_contracts.errors import StorageUnavailable, UsageError
from data_contracts.handoffs import passed_over
from data_contracts.quoting import escaped
from data_contracts.run_report import RunReport
from flows.commands.decisions import store_with
from flows.commands.guard import Answer, log, run_answer
from flows.commands.terminal import table
from flows.features import hooks, is_present
from infra.approvals import protection
from infra.files import replace_bytes
from infra.gang.ledger import Found
from infra.models import registry
from infra.orchestrator.lifecycle import obstacles_here
from infra.orchestrator.server import expected_server
from infra.quantities import BYTES, SECONDS, in_words
from infra.records.receipts import holds_after
from infra.sources.named_places import NamedPlaces
from infra.sources.resolve import window_since
from infra.store import Store, layout
from infra.store.store import read_several
from infra.written_files import record_written
from tasks.queries.day import day_of, standing_of
from tasks.queries.history import Move, checkpoints_of, logs_of, moves_of
from tasks.queries.proof import Link, Proof, checked_seal
from tasks.queries.proof import prove as prove_version
from tasks.run.report import latest_report
from tasks.run.resolve import find_version
from tasks.run.run import known_store_list, reopen_run
from tasks.slo import read_objectives

if is_present("pages"):
    from tasks.pages.day_page import day_page, day_rows, is_day_page
if TYPE_CHECKING:
    from infra.orchestrator.api import Server
    from infra.signing.keys import PublicKey


# For each rank, if no rank is named.
LOG_LINES = 20


# An alias of a model, as `--json` shows it.
class _Model(TypedDict):
    name: str
    alias: str
    version: int


# Of a file that is there, as much as shows whether it is a page of a day.
_BEGINNING = 2048


def status(arguments: argparse.Namespace) -> Answer:
    """The `status` command; with `--html` the page of the day."""
    if asks_for_page(arguments):
        return day(arguments)
    server, lines = _server()
    value: list[dict[str, object]] = []
    stores = known_store_list(arguments.store)
    if not stores:
        lines += ["", "no store is known on this machine; `trainwright run SPEC` makes one"]
    for store in stores:
        newest = list(filter(is_name, store.list(layout.runs())))[-10:]
        runs = read_several(store, partial(_run_line, store), newest)
        models: list[_Model] = [
            {"name": model, "alias": alias, "version": version} for model, alias, version in registry.aliases(store)
        ]
        problem = why_not_writable(store)
        lines += ["", f"store     {store.uri}", *([] if problem is None else [f"  {problem}"])]
        of_models = [(m["name"], m["alias"], str(m["version"])) for m in models]
        of_runs = [(one["run_id"], one["pipeline"], f"{one['verdict']} {one.get('for', '')}".rstrip()) for one in runs]
        tables = table(("model", "alias", "version"), of_models), table(("run", "pipeline", "verdict"), of_runs)
        lines += [line for said in tables if said for line in ("", said)]
        due_texts = [sentence for due in hooks("due") for sentence in due(store)]
        lines += [line for said in due_texts for line in ("", f"  {said} (`trainwright mirror` tells it)")]
        lines += [] if any(tables) else ["  no runs and no models yet; `trainwright run SPEC` makes the first"]
        value.append({"uri": store.uri, "runs": runs, "models": models, "mirrors_due": due_texts, "problem": problem})
    return Answer("\n".join(lines), {"server": server.ui_url if server else None, "stores": value})


def _server() -> tuple[Server | None, list[str]]:
    """The Prefect server that commands use here, if it answers, and the lines about it and what it should run."""
    try:
        server = expected_server()
        said = server.ui_url if server else "not running (`trainwright up` starts it)"
    except (StorageUnavailable, UsageError) as error:
        server, said = None, str(error)
    signing_in = " (`trainwright ui` prints a link that signs you in)" if server is not None and server.ours else ""
    lines = [f"server    {said}{signing_in}"]
    return server, [*lines, *(f"{name:<9} {one.sentence} {one.remedy}" for name, one in obstacles_here(server))]


def why_not_writable(store: Store) -> str | None:
    """Why runs wait for the store, such as a full disk; None if it takes a write, or is not this user's to write."""
    try:
        store.now_s()
    except StorageUnavailable as error:
        return f"{str(error)[0].upper()}{str(error)[1:]}"
    except UsageError:
        return None
    return None


def checkpoints(arguments: argparse.Namespace) -> Answer:
    """The `checkpoints` command."""
    run = reopen_run(arguments.run, arguments.store)
    training, listing = checkpoints_of(run)
    now = datetime.now(UTC)
    ages = [(now - datetime.fromisoformat(one.written)).total_seconds() if one.written else None for one in listing]
    lines = [f"{training} of run {run.run_id} has {len(listing)} checkpoint{'s' if len(listing) != 1 else ''}"]
    rows = [_checkpoint(one, age_s) for one, age_s in zip(listing, ages, strict=True)]
    said = table(("step", "size", "age", "state", "metrics"), rows, ("step", "size", "age"))
    lines += ["", said] if said else []
    records = [{**one.to_json(), "age_s": age_s} for one, age_s in zip(listing, ages, strict=True)]
    return Answer("\n".join(lines), {"run_id": run.run_id, "training": training, "checkpoints": records})


def _checkpoint(checkpoint: Found, age_s: float | None) -> tuple[str, ...]:
    metrics = [f"{name} {value:.4g}" for name, value in sorted(checkpoint.metrics.items())]
    size = "" if checkpoint.bytes is None else in_words(checkpoint.bytes, BYTES)
    age = "" if age_s is None else in_words(age_s, SECONDS)
    state = f"{checkpoint.state}{', handed over' if checkpoint.handed_over else ''}"
    return (
        f"{checkpoint.step:,}",
        size,
        age,
        state,
        ", ".join([*([checkpoint.reason] if checkpoint.reason else []), *metrics]),
    )


def logs(arguments: argparse.Namespace) -> Answer:
    """The `logs` command."""
    run = reopen_run(arguments.run, arguments.store)
    training, rank_logs = logs_of(run, arguments.rank)
    lines = [f"{training} of run {run.run_id}, generation {rank_logs[0].status.generation}"]
    for one in rank_logs:
        status = one.status
        why = f"{status.ended}: {status.sentence}" if status.sentence else status.ended or "running"
        who = "no rank" if status.rank is None else f"rank {status.rank}"
        lines.append(f"--- {who} on node {status.node} {status.host}, step {status.last_step:,}: {why}")
        kept = (one.text or "").splitlines()
        lines += kept if arguments.rank is not None else kept[-LOG_LINES:]
        if one.text is None:
            lines.append("(nothing of its log is kept yet)")
    return Answer(
        "\n".join(lines),
        {
            "run_id": run.run_id,
            "training": training,
            "ranks": [{**asdict(one.status), "log": one.text} for one in rank_logs],
        },
    )


def show(arguments: argparse.Namespace) -> Answer:
    """The `show` command: a run by its id, else a model by name, alias or version."""
    for store in known_store_list(arguments.store) if is_name(arguments.name) else ():
        if store.exists(layout.resolved(arguments.name)):
            report = latest_report(store, arguments.name)
            if report is None:
                run = reopen_run(arguments.name, arguments.store)
                return Answer(f"{run.run_id} of {run.spec.name} has not ended.", run.resolved.to_json())
            page = run_answer(report, arguments)
            return Answer(page.text, page.value)
    store = store_with(arguments, "run or model" if "@" not in arguments.name else "model")
    version, alias = find_version(store, arguments.name)
    history = registry.history(store, version.name, alias) if alias else []
    held = holds_after(store, history[-1].ref) if history else ()
    checkpoint = version.checkpoint
    lines = [
        f"{version.name}{f'@{alias}' if alias else ''} is version {version.version}",
        f"  checkpoint  {checkpoint.ref.uri} (step {checkpoint.step:,}, {checkpoint.state})",
        f"  evaluation  {version.evaluation.uri}",
        *(f"  receipt     {receipt.sentence}" for receipt in history),
        *(f"  on hold     checkpoint {one.checkpoint_id[:12]}: {one.sentence}" for one in held),
    ]
    moves = {"history": [receipt.to_json() for receipt in history], "held": [one.to_json() for one in held]}
    return Answer("\n".join(map(escaped, lines)), {**version.to_json(), "alias": alias, **moves})


def prove(arguments: argparse.Namespace) -> Answer:
    """The `prove` command; exit code 6 if a byte differs anywhere."""

    def say(link: Link) -> None:
        log.info("ok  %-11s %s  %s, id %s", link.kind, link.uri, _content(link), link.id[:16])

    at_least = checked_seal(arguments.at_least) if arguments.at_least else ""
    keys, places = _keys(arguments.key), NamedPlaces.of(arguments.data)
    proof = prove_version(store_with(arguments), arguments.name, say, keys=keys, at_least=at_least, places=places)
    lines = [f"{proof.name} version {proof.version}: {len(proof.links)} sealed parts read again, every byte as sealed."]
    lines += [f"  raw file re-hashed: {uri}" for uri in proof.raw_checked]
    lines += [f"  raw file that is missing now: {uri}" for uri in proof.gone]
    lines += [
        f"  raw file that was not read: {uri} (only the store names its place: name it with --data)"
        for uri in proof.unopened
    ]
    lines += [f"  {uri} was trained{passed_over(spans)}" for uri, spans in proof.skipped.items()]
    lines += [
        f"  environment of {uri}: packages {one.packages:,} (digest {one.digest[:16]}), with Trainwright's own needs "
        f"{one.installed:,}"
        for uri, one in proof.environments.items()
    ]
    lines += _signed_lines(proof)
    if proof.external:
        lines.append("  the data is external: it was read by the user's data module and is not part of the proof")
    return Answer("\n".join(map(escaped, lines)), proof.to_json(), line=lines[0])


def _keys(paths: Sequence[str]) -> list[PublicKey]:
    if not paths:
        return []
    from infra.signing.keys import load_public_key

    return [load_public_key(path) for path in paths]


def _signed_lines(proof: Proof) -> list[str]:
    signed = proof.signed
    if signed is None:
        return []
    name = f"{proof.name}@{signed.alias}"
    who = " and ".join(f"{one[:16]}…" for one in signed.keys)
    count = f"{signed.receipts} receipt{'' if signed.receipts == 1 else 's'} of {name}"
    lines = [f"  signed: {count}, by the key {who}, back to the first that was signed"]
    if signed.before:
        lines.append(f"  not signed: {signed.before} before that, from the time when no key was configured")
    lines += [f"  approval: {one.sentence}" for one in signed.approvals]
    return [*lines, f"  newest receipt's seal: {signed.seal} (keep it elsewhere, for --at-least)"]


def _content(link: Link) -> str:
    """The number and size of a sealed part's files; a version or a receipt has none."""
    if not link.files:
        return "record only"
    return f"{link.files} file{'' if link.files == 1 else 's'}, {link.bytes:,} bytes"


def _run_line(store: Store, run_id: str) -> dict[str, str]:
    report: RunReport | None = latest_report(store, run_id)
    if report is not None:
        line = {"run_id": run_id, "pipeline": report.pipeline, "verdict": report.verdict}
        return line if report.verdict != "waiting" else {**line, "for": standing_of(store, run_id)}
    try:
        name = store.read_as(layout.resolved(run_id), lambda resolved: str(resolved["spec"]["name"]))
    except FileNotFoundError:  # it was stopped before it was resolved
        name = "?"
    return {"run_id": run_id, "pipeline": name, "verdict": "unfinished"}


def history(arguments: argparse.Namespace) -> Answer:
    """The `history` command: of one alias, or of all aliases of a model."""
    model, _, alias = arguments.name.partition("@")
    store = store_with(arguments)
    lines: list[str] = []
    aliases: dict[str, object] = {}
    for name, moves in moves_of(store, model, alias).items():
        pointer = registry.read_alias(store, model, name)
        held = registry.holds(store, pointer and pointer[0])
        lines += ["", *_history_lines(model, name, moves, held)]
        protected = protection(store, model, name)
        lines += ["", f"protected, because {protected.sentence}"] if protected is not None else []
        aliases[name] = {
            "moves": [one.to_json() for one in moves],
            "held": [one.to_json() for one in held],
            "protection": protected and protected.to_json(),
        }
    return Answer("\n".join(lines[1:]), {"model": model, "aliases": aliases})


def _history_lines(model: str, alias: str, moves: list[Move], holds: tuple[Hold, ...]) -> list[str]:
    count = f"{len(moves)} entr{'y' if len(moves) == 1 else 'ies'}"
    rows = [
        (
            readable(move.at),
            move.by or "?",
            move.trigger,
            _versions(move),
            move.sentence.removeprefix(f"{model}@{alias} "),
        )
        for move in moves
    ]
    last = moves[-1]
    names = "names nothing any more" if last.kind == "ended" else f"is version {last.after}"
    lines = [f"{model}@{alias} {names}: {count}", ""]
    lines.append(table(("when", "who", "trigger", "version", "what"), rows))
    for move in moves:
        if move.approval is not None or move.force is not None:
            lines += ["", f"{readable(move.at)}: the promotion of version {move.after}"]
            lines += [f"  {move.approval.sentence}"] if move.approval is not None else []
            lines += [f"  {move.force.sentence}"] if move.force is not None else []
        if move.canary is not None and move.canary.status is not None:
            lines += ["", f"{readable(move.at)}: version {move.canary.version} as canary", *_canary_lines(move.canary)]
        if move.incident is not None:
            lines += ["", f"{readable(move.at)}: the rollback from version {move.before} to version {move.after}"]
            lines += _incident_lines(move.incident)
    for hold in holds:
        lines += ["", f"on hold: checkpoint {hold.checkpoint_id[:12]}, because {hold.sentence}"]
    return lines


def _versions(move: Move) -> str:
    if move.kind in ("kept", "ended"):
        return f"{move.after}"
    return f"{'–' if move.before is None else move.before} → {'–' if move.after is None else move.after}"


def _canary_lines(note: CanaryNote) -> list[str]:
    terms, found = note.terms, note.status
    assert found is not None
    lines = [
        f"  stood       from {readable(terms.since)}, until {readable(terms.until)} at most",
        f"  ended       {note.reason}",
    ]
    if note.batches:
        runs = f"{len(note.batches)} run{'' if len(note.batches) == 1 else 's'}"
        lines.append(f"  rows        {found.rows:,} fresh rows, of {runs}")
    return lines


def _incident_lines(note: Incident) -> list[str]:
    left, back = note.left, note.back
    lines = [f"  reason      {note.reason or 'none was given'}"]
    lines += [f"  evidence    {one}" for one in note.evidence]
    since = f" since {readable(left.since)}" if left.since else ""
    run = f", by run {left.run_id}" if left.run_id else ""
    lines.append(f"  in service  version {left.version}{since}{run}")
    lines += [f"  it had met  {one}" for one in left.gates]
    names = sorted(left.metrics.keys() | back.metrics.keys())
    lines += [f"  {name}: {_figure(left.metrics, name)} → {_figure(back.metrics, name)}" for name in names]
    files = f"{note.checked_files} file{'' if note.checked_files == 1 else 's'}, {note.checked_bytes:,} bytes"
    return [*lines, f"  checked     version {back.version}'s checkpoint, {files}: every byte as sealed"]


def _figure(metrics: dict[str, float], name: str) -> str:
    return f"{metrics[name]:.4g}" if name in metrics else "not scored"


def asks_for_page(arguments: argparse.Namespace) -> bool:
    """Whether `--html` is given; UsageError for what has no effect without it."""
    for name in ("since", "objectives"):
        if getattr(arguments, "html", None) is None and getattr(arguments, name, None) is not None:
            raise UsageError(f"--{name} has no effect without --html.", remedy="Name the page's file: --html day.html.")
    return getattr(arguments, "html", None) is not None


def day(arguments: argparse.Namespace) -> Answer:
    """Write the page; an earlier page of a day is replaced, another file is not."""
    path = Path(arguments.html)
    _refuse_other_file(path)
    if ".." in (arguments.since or ""):
        raise UsageError(
            "--since: a page of a day ends now, so it has no END.", remedy="Name its beginning: --since 7d."
        )
    since = None if arguments.since is None else window_since(arguments.since).start
    found = day_of(known_store_list(arguments.store), read_objectives(arguments.objectives), since)
    try:
        replace_bytes(path, day_page(found).encode())
        record_written(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.", remedy="Name a file in a folder of yours with --html."
        ) from error
    title, counted, rows = day_rows(found)
    needed = [{"kind": kind, "sentence": what, "command": command} for kind, what, command in rows]
    value = {"page": str(path), "stores": [one.uri for one in found.stores], "needs": needed}
    lines = [f"{path} shows the day: {title}. {counted}", *(f"  {what} ({command})" for _, what, command in rows)]
    return Answer("\n".join(lines), value, line=lines[0])


def _refuse_other_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            known = not path.is_symlink() and is_day_page(file.read(_BEGINNING).decode(errors="replace"))
    except FileNotFoundError:
        known = not path.is_symlink()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", remedy="Name another file with --html."
        ) from error
    if not known:
        raise UsageError(f"{path} exists, and is not a page of a day.", remedy="Name another file with --html.")
