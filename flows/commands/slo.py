"""`slo`: how often the pipeline succeeds, in which time, what is left of error budgets, and how fast they are spent."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from data_contracts.errors import ObjectiveMissed, TrainwrightError
from flows.commands.guard import Answer, log
from flows.commands.tables import table
from tasks.pages.day_page import budget_words, good_words, share_words
from tasks.run.run import known_store_list
from tasks.slo.ledger import read_ledger
from tasks.slo.objectives import SHIPPED, WINDOW, Result, are_shipped, read_objectives, results

_HEAD = ["objective", "state", "target", "28 days", "good", "budget left", "burn of 7 days", "alert"]
_WHY = {
    "user": "failed in the user's code or spec",
    "person": "were ended by a person or a budget",
    "open": "not ended",
}


def slo(arguments: argparse.Namespace) -> Answer:
    """The `slo` command; with `--check` exit code 4 if an objective is missed."""
    objectives, now = read_objectives(arguments.objectives), datetime.now(UTC)
    lines: list[str] = []
    value: list[dict[str, Any]] = []
    missed: list[str] = []
    for store in known_store_list(arguments.store):
        known = read_ledger(store, now - WINDOW, now)
        found = results(objectives, known.runs, now)
        lines += [store.uri, table(_HEAD, [_row(one) for one in found], right=_HEAD[2:7]), *_notes(found), ""]
        if known.unreadable:
            log.warning("%d runs of %s have damaged records and are not counted.", len(known.unreadable), store.uri)
        missed += [f"{one.name} in {store.uri}" for one in found if one.state == "missed"]
        results_json = [one.to_json() for one in found]
        value.append({"store": store.uri, "objectives": results_json, "unreadable": list(known.unreadable)})
    text = "\n".join(lines).rstrip() or "No store is known on this machine."
    error = _missed(missed) if arguments.check and missed else None
    answer = {"since": (now - WINDOW).isoformat(timespec="seconds"), "until": now.isoformat(timespec="seconds")}
    code = 0 if error is None else error.exit_code
    if error is not None:
        text = f"{text}\n\n{error}"
    return Answer(text, {**answer, "stores": value, "missed": missed}, code, error)


def _missed(names: list[str]) -> TrainwrightError:
    return ObjectiveMissed(f"{len(names)} objective{'' if len(names) == 1 else 's'} missed: {', '.join(names)}.")


def _row(one: Result) -> tuple[str, ...]:
    burning = "–" if one.burning is None else f"{one.burning:.1f}"
    alert = ", ".join(alert.sentence for alert in one.alerts)
    share, left = share_words(one), budget_words(one)
    return one.name, one.state, f"{one.objective.target:.1%}", share, good_words(one), left, burning, alert


def _notes(found: list[Result]) -> list[str]:
    """Which runs count neither as good nor as bad, and why; and whose targets these are."""
    said = []
    for one in found:
        parts = [f"{number} {_WHY.get(why, why)}" for why, number in sorted(one.left_out.items())]
        said += [f"  {one.name} leaves out: {', '.join(parts)}"] if parts else []
    return [*said, f"  {SHIPPED}"] if are_shipped(found) else said
