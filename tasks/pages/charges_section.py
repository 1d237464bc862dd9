"""The part of a run's page about what its machines did, second by second, and what that cost."""

from __future__ import annotations

from tasks.costs.charges import CAUSES
from tasks.costs.histories import usage_of_run
from tasks.costs.sums import Sum, charged, sums
from tasks.pages.facts import Facts
from tasks.pages.html import NOTHING, Markup, section, table, tag

# The meaning of each cause whose name does not say it.
_MEANS = {
    "work": "the work itself",
    "start": "starting nodes and ranks",
    "gang": "waiting for the other nodes",
    "data": "waiting for data",
    "checkpoint": "saving checkpoints",
    "lost": "steps that were done again",
    "retry": "starting again, and what failed",
    "end": "ending nodes",
    "conductor": "the flow's own machine while others work",
    "idle": "nodes held between generations",
    "unknown": "not recorded",
}


def charges_section(facts: Facts) -> Markup:
    """Node-seconds and cost by stage and cause, over all attempts of the run so far."""
    usage = usage_of_run(facts.run)
    found = charged(usage.executions, 0.0, float(2**40))
    if not found:
        return NOTHING
    groups, total = sums(found, ("stage", "cause"), set())
    order: dict[str, int] = {name: number for number, name in enumerate(CAUSES)}
    groups.sort(key=lambda one: (one.words[0] == "run", order[one.words[1]]))
    lines = [(one.words[0], _MEANS[one.words[1]], *_figures(one)) for one in groups]
    lines.append(("in all", "", *_figures(total)))
    goodput = "" if total.goodput is None else f", {total.goodput:.0%} of it work"
    words = f"{total.node_seconds:,.0f} node-seconds{goodput}. Estimated at the prices of the run's start."
    return section(
        "What the machines did",
        tag("p", words, kind="soft"),
        table(("stage", "what", "node-seconds", "cost"), lines, numbers=(2, 3)),
    )


def _figures(one: Sum) -> tuple[str, str]:
    return f"{one.node_seconds:,.1f}", one.money
