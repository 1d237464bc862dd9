"""`history`: who moved an alias, when and why, with approvals, the notes of its rollbacks and what is on hold."""

from __future__ import annotations

import argparse
from typing import Any

from data_contracts.alias_moves import CanaryNote, Hold, Incident
from data_contracts.times import readable
from flows.commands.guard import Answer
from flows.commands.queries import store_with
from flows.commands.tables import table
from infra.approvals import protection
from infra.models import registry
from infra.store import Store
from tasks.queries.history import Move, moves_of


def history(arguments: argparse.Namespace) -> Answer:
    """The `history` command: of one alias, or of all aliases of a model."""
    model, _, alias = arguments.name.partition("@")
    store = store_with(arguments)
    lines: list[str] = []
    value: dict[str, Any] = {"model": model, "aliases": {}}
    for name, moves in moves_of(store, model, alias).items():
        held = _held(store, model, name)
        lines += ["", *_lines(model, name, moves, held)]
        protected = protection(store, model, name)
        lines += ["", f"protected, because {protected.sentence}"] if protected is not None else []
        value["aliases"][name] = {
            "moves": [one.to_json() for one in moves],
            "held": [one.to_json() for one in held],
            "protection": protected and protected.to_json(),
        }
    return Answer("\n".join(lines[1:]), value)


def _held(store: Store, model: str, alias: str) -> tuple[Hold, ...]:
    found = registry.read_alias(store, model, alias)
    return registry.holds(store, found and found[0])


def _lines(model: str, alias: str, moves: list[Move], held: tuple[Hold, ...]) -> list[str]:
    count = f"{len(moves)} entr{'y' if len(moves) == 1 else 'ies'}"
    rows = [(readable(one.at), one.by or "?", one.trigger, _versions(one), _why(model, alias, one)) for one in moves]
    last = moves[-1]
    names = "names nothing any more" if last.kind == "ended" else f"is version {last.after}"
    lines = [f"{model}@{alias} {names}: {count}", ""]
    lines.append(table(("when", "who", "trigger", "version", "what"), rows))
    for one in moves:
        if one.approval is not None or one.force is not None:
            lines += ["", f"{readable(one.at)}: the promotion of version {one.after}"]
            lines += [f"  {one.approval.sentence}"] if one.approval is not None else []
            lines += [f"  {one.force.sentence}"] if one.force is not None else []
        if one.canary is not None and one.canary.standing is not None:
            lines += ["", f"{readable(one.at)}: version {one.canary.version} as canary", *_canary(one.canary)]
        if one.incident is not None:
            lines += ["", f"{readable(one.at)}: the rollback from version {one.before} to version {one.after}"]
            lines += _note(one.incident)
    for hold in held:
        lines += ["", f"on hold: checkpoint {hold.checkpoint_id[:12]}, because {hold.sentence}"]
    return lines


def _versions(move: Move) -> str:
    if move.kind in ("kept", "ended"):
        return f"{move.after}"
    return f"{'–' if move.before is None else move.before} → {'–' if move.after is None else move.after}"


def _why(model: str, alias: str, move: Move) -> str:
    """The receipt's sentence without the alias's name, which stands above the table."""
    return move.sentence.removeprefix(f"{model}@{alias} ")


def _canary(note: CanaryNote) -> list[str]:
    terms, found = note.terms, note.standing
    assert found is not None
    lines = [
        f"  stood       from {readable(terms.since)}, until {readable(terms.until)} at most",
        f"  ended       {note.reason}",
    ]
    if note.nights:
        runs = f"{len(note.nights)} run{'' if len(note.nights) == 1 else 's'}"
        lines.append(f"  rows        {found.rows:,} fresh rows, of {runs}")
    return lines


def _note(note: Incident) -> list[str]:
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
