"""What on a day's page needs a person: one sentence and one command each, the gravest first."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from tasks.queries.day import Day, StoreDay
from tasks.slo.ledger import LedgerRun

# Of each kind; a night in which everything fails fills no page.
MOST = 8
_ORDER = ("bad", "warn")


@dataclass(frozen=True)
class AttentionItem:
    """Something that needs a person; `tone`: `bad` or `warn`."""

    tone: str
    kind: str
    sentence: str
    command: str


def needs(day: Day) -> list[AttentionItem]:
    """What needs a person, the gravest first; of each kind at most `MOST`, and then how many more there are."""
    found: dict[tuple[str, str], list[AttentionItem]] = {}
    for store in day.stores:
        for one in _needs(day, store):
            found.setdefault((one.tone, one.kind), []).append(one)
    listed: list[AttentionItem] = []
    for (tone, kind), alike in found.items():
        listed += alike[:MOST]
        if len(alike) > MOST:
            listed.append(AttentionItem(tone, kind, f"{len(alike) - MOST} more of this kind", "trainwright status"))
    return sorted(listed, key=lambda one: _ORDER.index(one.tone))


def _needs(day: Day, store: StoreDay) -> Iterator[AttentionItem]:
    for result in store.results:
        for alert in result.alerts[:1]:
            tone = "bad" if alert.severity == "page" else "warn"
            yield AttentionItem(
                tone, "objective", f"{result.name}: {alert.sentence}", f"trainwright slo {shlex.quote(store.uri)}"
            )
    for run, what in store.waits:
        yield AttentionItem(
            "warn",
            "approval",
            f"{run.pipeline} waits {what}".rstrip(),
            f"trainwright approve {run.run_id} --reason WHY",
        )
    for run in store.runs:
        if run.verdict == "died":
            sentence = f"the process of a run of {run.pipeline} died in {run.stage or 'its beginning'}"
            yield AttentionItem("bad", "died", sentence, f"trainwright resume {run.run_id}")
    for run in _failing(day.recent(store)):
        sentence = f"the newest run of {run.pipeline} failed in {run.stage or 'its beginning'}: {cause_words(run)}"
        yield AttentionItem("bad", "failed", sentence, f"trainwright report {run.run_id}")
    yield from _of_the_store(day, store)


def _of_the_store(day: Day, store: StoreDay) -> Iterator[AttentionItem]:
    if store.is_nearly_full:
        sentence = f"the disk of {store.uri} is {store.used:.0%} full"
        yield AttentionItem("bad", "disk", sentence, f"trainwright gc --dry-run {shlex.quote(store.uri)}")
    for champion in store.champions:
        if champion.beside == "has ended":
            sentence = f"the canary of {champion.model} has ended, and its alias has not followed"
            yield AttentionItem("warn", "canary", sentence, f"trainwright canary {champion.model}")
    for budget in store.budgets:
        if budget.period != "each run" and budget.left <= 0:
            yield AttentionItem(
                "bad",
                "budget",
                f"nothing is left of {budget.sentence}",
                f"trainwright budget --store {shlex.quote(store.uri)}",
            )
    for node in store.nodes:
        since = day.since.astimezone(UTC).isoformat()
        went_wrong = [one for one in node.mishaps if _moment(one.at) >= _moment(since)]
        if went_wrong and not node.is_drained:
            mishaps = "1 mishap" if len(went_wrong) == 1 else f"{len(went_wrong)} mishaps"
            sentence = f"node {node.name}: {mishaps}, the last one a {words(went_wrong[-1].kind)}"
            yield AttentionItem("warn", "node", sentence, f"trainwright nodes {shlex.quote(store.uri)}")
    if store.unreadable:
        number = len(store.unreadable)
        sentence = f"{number} run{'' if number == 1 else 's'} with damaged records, such as {store.unreadable[0]}"
        yield AttentionItem("bad", "damaged", sentence, f"trainwright show {store.unreadable[0]}")
    for what in store.missing:
        yield AttentionItem(
            "warn", "missing", f"not on this page, because it could not be read: {what}", "trainwright doctor"
        )


def _failing(recent: Iterable[LedgerRun]) -> Iterator[LedgerRun]:
    """Of each pipeline its newest run that ended, if it failed."""
    seen: set[str] = set()
    for run in recent:
        if run.blame != "open" and run.verdict != "died" and run.pipeline not in seen:
            seen.add(run.pipeline)
            if run.verdict in ("failed", "over_budget"):
                yield run


def words(name: str) -> str:
    """A cause or a verdict as words."""
    return name.replace("_", " ")


def cause_words(run: LedgerRun) -> str:
    """Why a run failed, and whose it is."""
    if run.cause == "user_code":
        return "an error in the user's code"
    whose = " (the user's code or spec)" if run.blame == "user" else ""
    return f"{words(run.cause) or 'unknown'}{whose}"


def _moment(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0
