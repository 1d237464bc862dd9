"""Samples of what a run has used and kept so far: a pure function of its record and of the gang that works now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from data_contracts.executions import HERE, ExecutionUsage, GangUsage
from infra.metrics import Sample
from tasks.costs.charges import charges

# What a generation that still works has done since its newest checkpoint: it is kept, or lost, later.
UNCOMMITTED = "uncommitted"


def run_samples(
    execution: ExecutionUsage, live: GangUsage | None, earlier: Sequence[ExecutionUsage] = ()
) -> Iterator[Sample]:
    """What the machines of a run did so far, and what they cost.

    Args:
        execution: of the run by this process.
        live: the use of the generation that works now, beside those that the execution has recorded.
        earlier: the executions of the run before.
    """
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    costs: dict[tuple[str, str], float] = defaultdict(float)
    unpriced_s = 0.0
    for charge in (charge for one in (*earlier, _with(execution, live)) for charge in charges(one)):
        lives = live is not None and (charge.stage, charge.generation) == (live.stage, live.generation)
        cause = UNCOMMITTED if lives and charge.cause == "lost" else charge.cause
        seconds[charge.stage, cause] += charge.node_seconds
        if charge.amount is None:
            unpriced_s += charge.node_seconds
        else:
            costs[charge.price.currency, cause] += charge.amount
    for labels, value in sorted(seconds.items()):
        yield Sample("node_time_seconds", value, labels)
    for labels, value in sorted(costs.items()):
        yield Sample("cost", value, labels)
    yield Sample("unpriced_time_seconds", unpriced_s)
    known = sum(value for (_, cause), value in seconds.items() if cause != "unknown")
    if known > 0:
        work = sum(value for (_, cause), value in seconds.items() if cause == "work")
        yield Sample("goodput_ratio", work / known)
    for currency, per_hour in sorted(_rates(execution, live).items()):
        yield Sample("cost_per_hour", per_hour, (currency,))


def _with(execution: ExecutionUsage, live: GangUsage | None) -> ExecutionUsage:
    """The execution with the generation that works now, as if it ended well here: its failure is not known yet."""
    if live is None or not live.nodes:
        return execution
    return execution.model_copy(update={"gangs": [*execution.gangs, live.model_copy(update={"ended": "done"})]})


def _rates(execution: ExecutionUsage, live: GangUsage | None) -> dict[str, float]:
    """What an hour costs now, by currency. This machine is not charged beside nodes that are its own processes."""
    held = [] if live is None else [(live.stage, len(live.nodes))]
    held += [(HERE, 1)] if live is None or not live.local else []
    rates: dict[str, float] = defaultdict(float)
    for place, number in held:
        price = execution.price_of(place)
        if price.per_hour is not None:
            rates[price.currency] += number * price.per_hour
    return dict(rates)
