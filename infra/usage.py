"""What the processes and nodes of a run used, as their records tell it, what that costs, and what it teaches.

The records are those of the processes that carried a run out, also of killed ones and of those at work; a generation
whose conductor was killed before it recorded it is known from the records of its nodes. Whoever writes the store can
write such a record, so each is bounded by what is known of its run: nothing is charged before it began, or after it was
last alive. Clocks of machines differ, so an hour is allowed. Who is charged for what is decided in `tasks.costs`.

From a checkpoint's stall and the failures of nodes that past runs tell of follows the checkpoint interval that loses
least. An interval is the time between the starts of two checkpoints, as `train.checkpoint.every_s` is.

J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (9), 1974.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22 (3), 2006.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from data_contracts.canonical import is_name
from data_contracts.executions import HERE, ExecutionHeartbeat, ExecutionUsage, GangUsage, NodeUsage, StageUsage
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Latest, Launch, used_by_node
from data_contracts.records import Record
from data_contracts.resolved import Price
from data_contracts.run_report import Cost
from infra.gang.ledger import NodeRecord, generations, node_records
from infra.processes.this_process import now_s
from infra.store import Store, layout
from infra.store.records import parsed

log = logging.getLogger("trainwright")
CLOCKS_S = 3600.0
_STARTED = re.compile(r"[0-9]{8}-[0-9]{6}(?=-)")
R = TypeVar("R", bound=Record)


def cost(node_seconds: float, price: Price) -> Cost:
    """The cost of `node_seconds` at a price of the start of the run, not rounded; unknown if the price is."""
    amount = None if price.per_hour is None else node_seconds / 3600 * price.per_hour
    in_usd = price.currency == "USD"
    return Cost(
        node_seconds=node_seconds,
        usd=amount if in_usd else None,
        machine=price.place,
        usd_per_hour=price.per_hour if in_usd else None,
        price_date=price.price_date,
        amounts={} if in_usd or amount is None else {price.currency: amount},
        unpriced_s=node_seconds if amount is None else 0.0,
    )


def total(costs: Sequence[Cost], price: Price) -> Cost:
    """The sum of costs, rounded; unknown if any of them is.

    Args:
        price: of a node that trains, which the sum names.
    """
    amounts: dict[str, float] = {}
    for one in costs:
        for currency, amount in (one.amounts or ({} if one.usd is None else {"USD": one.usd})).items():
            amounts[currency] = amounts.get(currency, 0.0) + amount
    unpriced_s = sum(one.unpriced_s for one in costs)
    amounts = {currency: round(amount, 6) for currency, amount in amounts.items()}
    # Nothing that costs nothing is known to be 0 only where the price is.
    if not any(one.node_seconds for one in costs) and price.per_hour is not None and price.currency == "USD":
        amounts = {"USD": 0.0}
    whole = not unpriced_s and set(amounts) == {"USD"}
    in_usd = price.currency == "USD"
    return Cost(
        node_seconds=round(sum(one.node_seconds for one in costs), 3),
        usd=amounts["USD"] if whole else None,
        machine=price.place,
        usd_per_hour=price.per_hour if in_usd else None,
        price_date=price.price_date,
        amounts={} if whole else amounts,
        unpriced_s=round(unpriced_s, 3),
    )


def bounded(executions: Iterable[ExecutionUsage], now_s: float) -> tuple[list[ExecutionUsage], list[str]]:
    """The executions of a run within the times that they can have, and a sentence for each that lost something.

    An execution that began before its run, whose id has its start, or in the future is left out. The time of a node
    before its execution began, or after it was last alive, is left out.
    """
    kept: list[ExecutionUsage] = []
    sentences: list[str] = []
    for one in executions:
        started = _started(one.run_id)
        where = f"The record of use {one.execution} of the run {one.run_id}"
        if started is not None and one.began < started - CLOCKS_S:
            sentences.append(f"{where} begins before the run, and is left out.")
        elif one.began > now_s + CLOCKS_S:
            sentences.append(f"{where} begins in the future, and is left out.")
        else:
            within, lost = _within(one, now_s)
            kept.append(within)
            if lost:
                sentences.append(f"{where} has times {' and '.join(lost)}, which are left out.")
    return kept, sentences


def launched_once(executions: Sequence[ExecutionUsage]) -> list[ExecutionUsage]:
    """The executions of a run with each launch in one of them: where two recorded it, in the one that saw most of it.

    Two processes that carry a run out one after the other, or for a moment at once, may both have seen a generation.
    """
    most: dict[tuple[str, int], tuple[float, int]] = {}
    for number, one in enumerate(executions):
        for gang in one.gangs:
            seen = (sum(max(node.released - node.started, 0.0) for node in gang.nodes), -number)
            launch = (gang.where, gang.generation)
            most[launch] = max(most.get(launch, seen), seen)
    return [
        one.model_copy(
            update={"gangs": [gang for gang in one.gangs if most[gang.where, gang.generation][1] == -number]}
        )
        for number, one in enumerate(executions)
    ]


def _within(execution: ExecutionUsage, now_s: float) -> tuple[ExecutionUsage, list[str]]:
    """An execution whose times are possible, and which of its times were not."""
    latest = now_s + CLOCKS_S
    ended = execution.ended if execution.ended is None or execution.ended <= latest else max(now_s, execution.began)
    lost = ["in the future"] if ended != execution.ended else []
    first, last = execution.began - CLOCKS_S, (latest if ended is None else min(ended + CLOCKS_S, latest))
    gangs = [
        gang.model_copy(update={"nodes": [_cut(node, first, last) for node in gang.nodes]}) for gang in execution.gangs
    ]
    if any(node.started < first for gang in execution.gangs for node in gang.nodes):
        lost.append("before its start")
    if any(node.released > last for gang in execution.gangs for node in gang.nodes):
        lost.append("after its end")
    if not lost:
        return execution, []
    return execution.model_copy(update={"ended": ended, "gangs": gangs}), lost


def _cut(node: NodeUsage, first: float, last: float) -> NodeUsage:
    """A node's record between two times."""
    names = ("started", "released", "joined", "working", "stopped")
    moments = {name: min(max(at, first), last) for name in names if (at := getattr(node, name)) is not None}
    return node.model_copy(update=moments)


def _started(run_id: str) -> float | None:
    """When a run was started (seconds since the epoch), by its id; None if that does not say."""
    found = _STARTED.match(run_id)
    if found is None:
        return None
    try:
        return datetime.strptime(found[0], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def gang_by_its_nodes(store: Store, where: str, number: int, run_id: str) -> GangUsage | None:
    """Generation `number` of a training or job, by its nodes' own clocks; None if another run launched it.

    A node that was killed, too, is counted up to its last heartbeat.
    """
    launch = store.read_as(layout.launch(where, number), Launch.from_json)
    if launch.provenance.get("run_id", run_id) != run_id:
        return None
    begin = launch.resume or launch.begin
    first = 0 if begin is None else begin.step
    records = sorted(node_records(store, where, number).items())
    found = [_node(where, number, node, record, first) for node, record in records]
    nodes = [one for one in found if one is not None]
    if not nodes:
        return None
    last = max(step for _, step, _ in nodes)
    ended = next((end for _, _, end in nodes if end != "done"), "done")
    kept = last if ended == "done" else max([first, *(one.step for one in _kept(store, where) if one.step <= last)])
    return GangUsage(
        stage="",
        where=where,
        generation=number,
        local=False,
        nodes=[node for node, _, _ in nodes],
        met=max((node.joined for node, _, _ in nodes if node.joined is not None), default=None),
        ended=ended,
        first_step=first,
        last_step=last,
        kept_step=kept,
    )


def _node(where: str, number: int, node: int, record: NodeRecord, first: int) -> tuple[NodeUsage, int, str] | None:
    """A node, its last step and how it ended; None if it left no record."""
    joined, beat, ended = record
    if joined is None and ended is None:
        return None
    step = max([first, *(seen.step for seen in record.seen)])
    answered = None if joined is None else joined.time
    started = (answered or 0.0) if ended is None else ended.started
    released = max(started, (beat.time if beat else 0.0) if ended is None else ended.released)
    words = {
        "number": node,
        "started": started,
        "released": released,
        "joined": answered,
        # When its steps began and ended is not known.
        "working": answered if step > first else None,
        "stopped": released if step > first else None,
        "used": (beat.used if beat else None) if ended is None else used_by_node(ended),
        "gpus": None if ended is None else ended.gpus,
    }
    usage = parsed(layout.node(where, number, node), NodeUsage.model_validate, words)
    how = "killed" if ended is None else "done" if ended.error is None else str(ended.error["cause"])
    return usage, step, how


def _kept(store: Store, where: str) -> list[Checkpoint]:
    pointer = store.pointer(layout.latest(where)).read()
    return [] if pointer is None else Latest.from_json(pointer.value).checkpoints


def executions_of(store: Store, run_id: str) -> tuple[list[ExecutionUsage], bool]:
    """A run's executions in order, and whether the last has no end: it still works, or its process was killed.

    What no execution of the run can have used is left out with a warning. CorruptError if a record is damaged: what is
    not known is not 0.
    """
    found: list[ExecutionUsage] = []
    heartbeats: dict[str, ExecutionHeartbeat] = {}
    for name in filter(is_name, store.list(layout.usages(run_id))):  # what is no name was not made by Trainwright
        whole = store.find_as(layout.usage(run_id, name, "ended"), ExecutionUsage.from_json)
        whole = whole or _interrupted(store, run_id, name, heartbeats)
        if whole is None:
            continue
        if (whole.run_id, whole.execution) != (run_id, name):  # its times would be held against another run's
            log.warning("The record of use %s of the run %s names another, and is left out.", name, run_id)
            continue
        found.append(whole)
    found.sort(key=lambda one: one.began)
    if heartbeats:
        found = _with_lost_gangs(store, found, heartbeats)
    within, sentences = bounded(launched_once(found), max(time.time(), now_s()))
    for sentence in sentences:
        log.warning("%s", sentence)
    return within, bool(within) and within[-1].execution in heartbeats


def _interrupted(
    store: Store, run_id: str, name: str, heartbeats: dict[str, ExecutionHeartbeat]
) -> ExecutionUsage | None:
    """An execution without an end, from its parts and its last heartbeat, which is added to `heartbeats`."""
    began = store.find_as(layout.usage(run_id, name, "began"), ExecutionUsage.from_json)
    if began is None:
        return None
    parts = store.list(layout.usages(run_id, name))
    stages = [_part(store, run_id, name, one, StageUsage) for one in _numbered(parts, "stage")]
    gangs = [_part(store, run_id, name, one, GangUsage) for one in _numbered(parts, "gang")]
    path = layout.usage_beat(run_id, name)
    pointer = store.pointer(path).read()
    heartbeat = (
        ExecutionHeartbeat(at=began.began)
        if pointer is None
        else parsed(path, ExecutionHeartbeat.model_validate, pointer.value)
    )
    heartbeats[name] = heartbeat
    done = max([began.began, *(one.ended for one in stages)])
    last = max([done, heartbeat.at, *(node.released for gang in gangs for node in gang.nodes)])
    if heartbeat.stage and last > done:
        stages.append(StageUsage(name=heartbeat.stage, began=done, ended=last, status="killed"))
    return began.model_copy(update={"ended": last, "stages": stages, "gangs": gangs, "used": heartbeat.used})


def _numbered(parts: Iterable[str], kind: str) -> list[str]:
    found = [(int(match[1]), one) for one in parts if (match := re.fullmatch(rf"{kind}-([0-9]+)\.json", one))]
    return [one.removesuffix(".json") for _, one in sorted(found)]


def _part(store: Store, run_id: str, name: str, part: str, model: type[R]) -> R:
    def parse(value: dict[str, object]) -> R:
        return model.model_validate({key: one for key, one in value.items() if key != "schema_version"})

    return store.read_as(layout.usage(run_id, name, part), parse)


def _with_lost_gangs(
    store: Store, executions: list[ExecutionUsage], heartbeats: dict[str, ExecutionHeartbeat]
) -> list[ExecutionUsage]:
    """The executions with the generations whose conductor was killed before it recorded them."""
    recorded = {(gang.where, gang.generation) for one in executions for gang in one.gangs}
    more: dict[str, list[GangUsage]] = {}
    for execution in executions:
        for followed in heartbeats[execution.execution].follows if execution.execution in heartbeats else ():
            for number in generations(store, followed.where):
                if (followed.where, number) in recorded:
                    continue
                gang = gang_by_its_nodes(store, followed.where, number, execution.run_id)
                if gang is not None and _is_of(execution, executions, gang):
                    recorded.add((followed.where, number))
                    named = {"stage": followed.stage, "local": followed.local}
                    more.setdefault(execution.execution, []).append(gang.model_copy(update=named))
    return [one.model_copy(update={"gangs": [*one.gangs, *more.get(one.execution, [])]}) for one in executions]


def _is_of(execution: ExecutionUsage, executions: list[ExecutionUsage], gang: GangUsage) -> bool:
    """Whether an execution launched this generation: it is the last that began before the nodes did.

    Nodes on other machines have clocks of their own, so a second is allowed.
    """
    started = min(node.started for node in gang.nodes)
    before = [each for each in executions if each.began <= started + 1] or executions[:1]
    return before[-1].execution == execution.execution


DAY_S = 86_400.0
# What is expected of a node of which no failure is recorded: one failure in 150 node-days, in the range that large
# clusters of GPUs report (6.5 and 2.3 failures in 1,000 node-days: A. Kokolis et al., "Revisiting Reliability in
# Large-Scale Machine Learning Research Clusters", 2025). The truth may be ten times more or less (one sigma).
PRIOR_NODE_MTBF_S = 150 * DAY_S
_SIGMA = math.log(10)
# The rates over which the belief is averaged: this many sigmas either way, and points per sigma.
_SIGMAS, _POINTS = 6, 40
# How a generation ends that a failure of its nodes or of their conductor ended, and that lost steps. A preemption saves
# a checkpoint first, and what the user's code or a person ended fails on any node.
FAILURES = frozenset(("node_lost", "hung", "storage", "corrupt", "killed"))


def interval(stall_s: float, mtbf_s: float) -> float:
    """Seconds between two checkpoints with which least time is expected to be lost (Daly 2006, equation 37, with the
    stall included). The time of a restart has no part in it.

    Args:
        stall_s: how long the steps wait for one checkpoint.
        mtbf_s: mean time between failures of the whole gang; infinite if it never fails.
    """
    _check(stall_s, mtbf_s)
    if math.isinf(mtbf_s):
        return math.inf
    if stall_s >= 2 * mtbf_s:
        return mtbf_s + stall_s
    part = stall_s / (2 * mtbf_s)
    return math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9)


def expected_loss(interval_s: float, stall_s: float, mtbf_s: float, restart_s: float) -> float:
    """The share of the time that is expected to be lost: checkpoints, restarts, and steps done again.

    Failures come at random (exponential), also while a checkpoint is saved or the gang restarts (Daly 2006, equation
    20). 1.0: no step is kept.
    """
    _check(stall_s, mtbf_s)
    worked_s = interval_s - stall_s
    if worked_s <= 0:
        return 1.0
    if math.isinf(interval_s):
        return 0.0 if math.isinf(mtbf_s) else 1.0
    if math.isinf(mtbf_s):
        return stall_s / interval_s
    exponent = (interval_s + restart_s) / mtbf_s
    if exponent > 700:  # beyond what a float holds
        return 1.0
    whole_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(interval_s / mtbf_s)
    return 1 - worked_s / whole_s


def node_mtbf(failures: int, node_seconds: float) -> float:
    """Mean time between failures of one node, from those that were recorded in so many node-seconds.

    The failure rate is believed to be log-normal around `PRIOR_NODE_MTBF_S` before anything is recorded; the answer is
    the geometric mean of the belief afterwards. So no failure in a short time says little, no failure in a long time
    gives a long but finite time, and with ten failures the prior hardly matters.
    """
    weights = []
    places = [number / _POINTS for number in range(-_SIGMAS * _POINTS, _SIGMAS * _POINTS + 1)]
    for place in places:
        rate = math.exp(place * _SIGMA) / PRIOR_NODE_MTBF_S
        weights.append(-place * place / 2 + failures * place * _SIGMA - rate * max(node_seconds, 0.0))
    highest = max(weights)
    likely = [math.exp(weight - highest) for weight in weights]
    mean = sum(place * one for place, one in zip(places, likely, strict=True)) / sum(likely)
    return PRIOR_NODE_MTBF_S * math.exp(-mean * _SIGMA)


def _check(stall_s: float, mtbf_s: float) -> None:
    if not (0 <= stall_s < math.inf and mtbf_s > 0):
        raise ValueError(f"no interval for a stall of {stall_s} s and {mtbf_s} s between failures")


@dataclass(frozen=True)
class PastTrainings:
    """What the trainings of past runs tell.

    Attributes:
        failures, node_seconds: on one pool, of all pipelines.
        saves, stalled_s: checkpoints of one pipeline for which steps waited, and for how long in all.
        restarts, restarting_s: from a failure to the next step.
        steps, stepping_s: from the first step to the last, of one pipeline.
        steps_per_epoch: of its newest training that ended; 0 if unknown.
    """

    failures: int = 0
    node_seconds: float = 0.0
    saves: int = 0
    stalled_s: float = 0.0
    restarts: int = 0
    restarting_s: float = 0.0
    steps: int = 0
    stepping_s: float = 0.0
    steps_per_epoch: int = 0


def past_trainings(executions: Iterable[ExecutionUsage], pipeline: str, pool: str) -> PastTrainings:
    """What executions tell, oldest first; a generation that two of them recorded counts once.

    Args:
        pool: the work pool of the nodes that train; "" for processes of this machine.
    """
    failures = saves = restarts = steps = per_epoch = 0
    node_seconds = stalled_s = restarting_s = stepping_s = 0.0
    counted: dict[tuple[str, int], GangUsage] = {}
    for one in executions:
        price = one.prices.get("train") or one.prices.get(HERE)
        for gang in one.gangs:
            if gang.stage != "train" or not gang.ended or (gang.where, gang.generation) in counted:
                continue
            before = counted.get((gang.where, gang.generation - 1))
            counted[gang.where, gang.generation] = gang
            if ("" if gang.local else price.pool if price else "") == pool:
                node_seconds += sum(max(node.released - node.started, 0.0) for node in gang.nodes)
                failures += gang.ended in FAILURES
                lost_s = 0.0 if before is None else _between(before, gang)
                restarts, restarting_s = restarts + (lost_s > 0), restarting_s + lost_s
            if one.pipeline == pipeline:
                # The slowest node of a generation made the others wait.
                spans = [node.stopped - node.working for node in gang.nodes if node.stopped and node.working]
                spans = [gang.stepping_s] if gang.stepping_s else spans
                if gang.saves:
                    saves, stalled_s = saves + gang.saves, stalled_s + max(node.saved_s for node in gang.nodes)
                if spans and gang.last_step - gang.first_step > 1:
                    # A node works from the end of its first step that was seen.
                    steps, stepping_s = steps + gang.last_step - gang.first_step - 1, stepping_s + max(spans)
                per_epoch = gang.steps_per_epoch or per_epoch
    return PastTrainings(failures, node_seconds, saves, stalled_s, restarts, restarting_s, steps, stepping_s, per_epoch)


def _between(before: GangUsage, after: GangUsage) -> float:
    """Seconds from a generation that failed to the first step of the next; 0 if it did not fail, or without a step."""
    began = [node.working for node in after.nodes if node.working is not None]
    if before.ended not in FAILURES or not began or not before.nodes:
        return 0.0
    return max(min(began) - max(node.released for node in before.nodes), 0.0)
