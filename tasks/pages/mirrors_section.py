"""The part of a run's page about the mirrors: where the run was sent, what failed, and what is tried again."""

from __future__ import annotations

from data_contracts.operations import Delivery
from infra.mirrors import newest_delivery, newest_end
from tasks.pages.facts import Facts
from tasks.pages.html import NOTHING, Markup, section, table, tag

_AGAIN = "The next run with mirrors in this store tries again, as does `trainwright mirror`."


def mirrors_section(facts: Facts) -> Markup:
    """Each mirror that the spec names, with what it was told of this run; nothing if it names none."""
    run = facts.run
    spec, what = run.spec.mirrors, newest_end(run.store, run.run_id)
    if not spec.names or not run.recorded:
        return NOTHING
    rows, left = [], []
    for name in spec.names:
        attempts, last = (0, None) if what is None else newest_delivery(run.store, run.run_id, name, what)
        place = spec.place(name, run.resolved.root)
        rows.append((name, place, _state(last), _when(attempts, last), "" if last is None else last.sentence))
        left += [] if last is not None and last.delivered else [name]
    note = tag("p", f"Not sent: {', '.join(left)}. {_AGAIN}", kind="soft") if left else NOTHING
    return section("Mirrors", table(("mirror", "where", "state", "newest attempt", "what happened"), rows), note)


def _state(last: Delivery | None) -> Markup:
    if last is None:
        return tag("span", "not yet", kind="tag calm")
    return tag("span", "sent" if last.delivered else "failed", kind=f"tag {'good' if last.delivered else 'warn'}")


def _when(attempts: int, last: Delivery | None) -> str:
    if last is None:
        return ""
    shown = last.at.replace("T", " ").replace("+00:00", " UTC")
    return f"{shown} (attempt {attempts})" if attempts > 1 else shown
