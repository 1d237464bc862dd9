"""`report`, `diff`, `slo`: the page of a run, as one HTML file that opens offline; comparisons; objectives.

The page of a run is always made again: a writer of the store may have changed the page there, and a browser would
follow it. `diff` shows two runs or versions side by side: data, contract, spec, code, metrics and weights. `slo` shows
how often the pipeline succeeds, in which time, what is left of error budgets, and how fast they are spent.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from data_contracts.errors import CorruptError, ObjectiveMissed, UsageError
from flows.commands.guard import Answer, log
from flows.commands.terminal import table
from infra.files import replace_bytes
from infra.settings import state_folder
from infra.store.seal import noting_damage
from infra.written_files import record_written
from tasks.pages.comparison_page import (
    Comparison,
    compare_sides,
    comparison_page,
    figure,
    find_side,
    metric_note,
    shapes,
)
from tasks.pages.day_page import budget_words, good_words, share_words
from tasks.pages.facts import facts_of
from tasks.pages.run_page import UNFINISHED, run_report_page
from tasks.run.report import latest_report
from tasks.run.run import known_store_list, reopen_run
from tasks.slo import SHIPPED, WINDOW, Result, are_shipped, read_ledger, read_objectives, results

# For each part; --json and the page have more.
DIFF_LINES = 30
_SLO_HEAD = ["objective", "state", "target", "28 days", "good", "budget left", "burn of 7 days", "alert"]
_WHY_LEFT_OUT = {
    "user": "failed in the user's code or spec",
    "person": "were ended by a person or a budget",
    "open": "not ended",
}


def report(arguments: argparse.Namespace) -> Answer:
    """Write the page."""
    out = free_file(arguments.out)
    run = reopen_run(arguments.run, arguments.store)
    ended = latest_report(run.store, run.run_id)
    with noting_damage() as damage:
        page = run_report_page(facts_of(run))
    path = write_page(page.encode(), out, run.run_id)
    verdict = ended.verdict if ended is not None else UNFINISHED
    value = {"run_id": run.run_id, "verdict": verdict, "page": str(path)}
    text = f"{path} shows run {run.run_id}: {verdict}."
    if damage:
        return Answer(f"{text} It lacks what is damaged.\n{damage[0]}", value, CorruptError.exit_code, damage[0])
    return Answer(text, value)


def free_file(name: str | None, option: str = "--out") -> Path | None:
    """The file that an option names; None without it. UsageError if the file exists."""
    if name is None:
        return None
    path = Path(name)
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already.", remedy=f"Name another file with {option}.")
    return path


def write_page(page: bytes, out: Path | None, name: str) -> Path:
    """Write a page to `out`; without one, to a file in the state folder that only this user can read."""
    path = out or state_folder() / "pages" / f"{name}.html"
    try:
        if out is not None:
            with path.open("xb") as file:
                file.write(page)
            record_written(path)
            return path
        path.parent.mkdir(exist_ok=True)
        replace_bytes(path, page, mode=0o600)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.", remedy="Name a file in a folder of yours with --out."
        ) from error
    return path


def diff(arguments: argparse.Namespace) -> Answer:
    """The `diff` command; with `--out` also as a page."""
    out = free_file(arguments.out)
    stores = known_store_list(arguments.store)
    with noting_damage() as damage:
        found = compare_sides(find_side(stores, arguments.before), find_side(stores, arguments.after))
    if damage:  # a part that cannot be read would be shown as one that is not there
        raise damage[0]
    value = found.to_json()
    lines = _diff_lines(found)
    if out is not None:
        write_page(comparison_page(found).encode(), out, "comparison")
        lines += ["", f"{out} shows it as a page."]
        value["page"] = str(out)
    return Answer("\n".join(lines), value, line=found.sentence)


def _diff_lines(comparison: Comparison) -> list[str]:
    lines = [f"{comparison.sentence}."]
    metrics = [(one.name, figure(one.before), figure(one.after), metric_note(one)) for one in comparison.metrics]
    for name, rows in comparison.parts.items():
        cells = [(row.name, row.before or "–", row.after or "–") for row in rows]
        lines += _diff_table(name, ("what", "before", "after"), cells)
    lines += _diff_table("metrics", ("metric", "before", "after", "after is"), metrics)
    changed = [one for one in comparison.weights if not one.same]
    weights = [(one.name, shapes(one), *map(figure, (*one.norms, one.difference))) for one in changed]
    lines += _diff_table("weights", ("tensor", "shape", "norm before", "norm after", "norm of difference"), weights)
    return [*lines, "", f"weights: {comparison.no_weights}"] if comparison.no_weights else lines


def _diff_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    more = len(rows) - DIFF_LINES
    rest = [f"… and {more} more (all of them with --json)"] if more > 0 else []
    return ["", title, table(head, rows[:DIFF_LINES]), *rest]


def slo(arguments: argparse.Namespace) -> Answer:
    """The `slo` command; with `--check` exit code 4 if an objective is missed."""
    objectives, now = read_objectives(arguments.objectives), datetime.now(UTC)
    lines: list[str] = []
    value: list[dict[str, object]] = []
    missed: list[str] = []
    for store in known_store_list(arguments.store):
        known = read_ledger(store, now - WINDOW, now)
        found = results(objectives, known.runs, now)
        lines += [
            store.uri,
            table(_SLO_HEAD, [_slo_row(one) for one in found], right=_SLO_HEAD[2:7]),
            *_slo_notes(found),
            "",
        ]
        if known.unreadable:
            log.warning("%d runs of %s have damaged records and are not counted.", len(known.unreadable), store.uri)
        missed += [f"{one.name} in {store.uri}" for one in found if one.state == "missed"]
        value.append(
            {"store": store.uri, "objectives": [one.to_json() for one in found], "unreadable": list(known.unreadable)}
        )
    text = "\n".join(lines).rstrip() or "No store is known on this machine."
    answer = {"since": (now - WINDOW).isoformat(timespec="seconds"), "until": now.isoformat(timespec="seconds")}
    shown = {**answer, "stores": value, "missed": missed}
    if not (arguments.check and missed):
        return Answer(text, shown)
    error = ObjectiveMissed(f"{len(missed)} objective{'' if len(missed) == 1 else 's'} missed: {', '.join(missed)}.")
    return Answer(f"{text}\n\n{error}", shown, error.exit_code, error)


def _slo_row(result: Result) -> tuple[str, ...]:
    burning = "–" if result.burning is None else f"{result.burning:.1f}"
    alert = ", ".join(alert.sentence for alert in result.alerts)
    share, left = share_words(result), budget_words(result)
    return result.name, result.state, f"{result.objective.target:.1%}", share, good_words(result), left, burning, alert


def _slo_notes(results: list[Result]) -> list[str]:
    """Which runs count neither as good nor as bad, and why; and whose targets these are."""
    notes = []
    for result in results:
        parts = [f"{number} {_WHY_LEFT_OUT.get(why, why)}" for why, number in sorted(result.left_out.items())]
        notes += [f"  {result.name} leaves out: {', '.join(parts)}"] if parts else []
    return [*notes, f"  {SHIPPED}"] if are_shipped(results) else notes
