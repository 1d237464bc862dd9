"""Which payer is charged for which second of which machine, and why: a pure function of an execution's record.

Every second of a node has one cause, one price and one payer. Times are whole microseconds, so the charges of a node
add up to its time exactly, however short the steps are. The time of a machine that several runs used at once is divided
among them, so that together they pay for it once.

Requests, bytes and energy go to the charges of the time in which they were used. Shares are by time, in whole numbers
that add up exactly. A quantity without any time, such as that of a process that was killed at once, stays with a charge
of no length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from data_contracts.costs import NOTHING, Resources
from data_contracts.executions import HERE, ExecutionUsage, GangUsage, NodeUsage, StageUsage
from data_contracts.resolved import Price

MICRO = 1_000_000
Span = tuple[int, int]
# Goodput is `work`; everything else is waste, by its cause. docs/cost.md explains each.
Cause = Literal[
    "work", "start", "gang", "data", "checkpoint", "lost", "retry", "end", "conductor", "idle", "unknown",
]  # fmt: skip
# How a generation ended of which an earlier Trainwright kept only a sum.
_ONLY_A_SUM = ""
DAY_US = 86_400 * MICRO
_FAILED = ("failed", "cancelled", "killed")


def spread(used: Resources | None, over: Sequence[Span]) -> list[Resources]:
    """Each time's share of what was used, by its length; the first has all of it if none has a length."""
    length = sum(ended - began for began, ended in over)
    if used is None or not over:
        return [NOTHING] * len(over)
    if not length:
        return [used, *[NOTHING] * (len(over) - 1)]
    at, shares = 0, []
    for began, ended in over:
        shares.append(used.part(at, at + ended - began, length))
        at += ended - began
    return shares


def _of_process(execution: ExecutionUsage, made: Sequence[Charge]) -> list[Resources]:
    """Each charge's share of what the run's process used: by stage, and the rest between the stages."""
    shares = [NOTHING] * len(made)
    for used, stage, span in _parts(execution):
        chosen = _places(made, stage, span)
        for number, share in zip(chosen, spread(used, [made[n].span for n in chosen]), strict=True):
            shares[number] += share
    return shares


def _places(made: Sequence[Charge], stage: str, span: Span | None) -> list[int]:
    """The charges that pay for a stage: of the machine, else of its nodes, else any of the machine, else any."""
    during = [n for n, one in enumerate(made) if one.stage == stage and _meets(one.span, span)]
    machine = [n for n, one in enumerate(made) if one.node is None]
    # A stage whose nodes are processes of this machine has no time of its own.
    return [n for n in during if made[n].node is None] or during or machine or list(range(len(made)))


def _parts(execution: ExecutionUsage) -> Iterator[tuple[Resources, str, Span | None]]:
    rest = execution.used or NOTHING
    for stage in execution.stages:
        if stage.used is not None:
            # A heartbeat may be older than the last stage's record, which then says more.
            rest -= stage.used
            yield stage.used, stage.name, (_micro(stage.began), _micro(stage.ended))
    yield rest, "run", None


def _meets(span: Span, other: Span | None) -> bool:
    return other is None or (span[0] < other[1] and span[1] > other[0])


@dataclass(frozen=True)
class Charge:
    """A time of one node, in microseconds since the epoch, with its cause, its price and the run that pays.

    Attributes:
        generation, node: None for the machine that carries the run out.
        used: its share of requests, bytes and measured energy.
        machine: which one it was, for the machine that carries the run out and nodes on it; "" if nobody knows.
        share: of its time that the run pays for; the rest is paid for by other runs that were on the machine.
    """

    run_id: str
    execution: str
    stage: str
    cause: Cause
    began_us: int
    ended_us: int
    price: Price
    generation: int | None = None
    node: int | None = None
    used: Resources = NOTHING
    machine: str = ""
    share: float = 1.0

    @property
    def span(self) -> Span:
        """Its time, in microseconds."""
        return self.began_us, self.ended_us

    @property
    def node_seconds(self) -> float:
        """Its length, or its share of it."""
        return (self.ended_us - self.began_us) / MICRO * self.share

    @property
    def gpu_seconds(self) -> float | None:
        """Its node-seconds times the accelerators of the node; None if nobody knows how many it has."""
        return self.node_seconds * self.price.devices if self.price.knows_devices else None

    @property
    def amount(self) -> float | None:
        """Its cost in the currency of its price; None if the price is unknown."""
        return None if self.price.per_hour is None else self.node_seconds / 3600 * self.price.per_hour

    def cut(self, began_us: int, ended_us: int) -> Charge:
        """The part of it between two moments that lie in it, with its share of what was used."""
        length = self.ended_us - self.began_us
        share = self.used if not length else self.used.part(began_us - self.began_us, ended_us - self.began_us, length)
        return replace(self, began_us=began_us, ended_us=ended_us, used=share)


# A charge with the execution that it belongs to.
Charged = tuple[ExecutionUsage, Charge]


def charges(execution: ExecutionUsage) -> list[Charge]:
    """Disjoint charges for every node-second of an execution: its own machine, and the nodes that it launched.

    Every request, byte and joule is in one of them; one without a length is there only for these.
    """
    made: list[Charge] = []
    for gangs in _launches(execution.gangs):
        for number, gang in enumerate(gangs):
            following = gangs[number + 1] if number + 1 < len(gangs) else None
            made += _of_gang(execution, gang, following)
    made += [*_of_machine(execution)] or [_at_start(execution)]
    made = [
        replace(one, used=one.used + share) if share.anything else one
        for one, share in zip(made, _of_process(execution, made), strict=True)
    ]
    return [one for one in made if one.ended_us > one.began_us or one.used.anything]


def by_day(charge: Charge) -> Iterator[Charge]:
    """A charge cut at each midnight (UTC); one without a length stays as it is."""
    began = charge.began_us
    while (midnight := (began // DAY_US + 1) * DAY_US) < charge.ended_us:
        yield charge.cut(began, midnight)
        began = midnight
    yield charge.cut(began, charge.ended_us)


@dataclass(frozen=True)
class _Occupancy:
    """Which part of its time on a machine a run pays for.

    Attributes:
        moments: at which the number of runs changes, in microseconds since the epoch, in order.
        paid_us: what one run that was there from the first moment on has paid for until each of them.
        together_us: for how long at least two runs had been there until each of them.
        counts: how many runs were there from each of them on.
    """

    moments: list[int]
    paid_us: list[float]
    together_us: list[int]
    counts: list[int]

    def share(self, charge: Charge) -> float:
        """The share of a charge that its run pays for; it lies within the moments, and has a length.

        Exactly 1 where its run was alone: that is decided in whole microseconds, not by rounded sums.
        """
        (paid, together), (paid_before, together_before) = self._until(charge.ended_us), self._until(charge.began_us)
        if together == together_before:
            return 1.0
        return min((paid - paid_before) / (charge.ended_us - charge.began_us), 1.0)

    def _until(self, moment: int) -> tuple[float, int]:
        index = bisect_right(self.moments, moment) - 1
        passed, count = moment - self.moments[index], self.counts[index]
        paid = self.paid_us[index] + (passed / count if passed else 0.0)
        return paid, self.together_us[index] + (passed if count > 1 else 0)


def shared(charged: Sequence[Charged]) -> list[Charged]:
    """The charges of several runs, each with the share that it pays for, and cut at midnight where that is a part.

    While k runs are on one machine at one price, each pays for a k-th of that time; what was used beside time stays
    whole. Nodes of one run count as one run, nodes of a pool are not shared, and a machine without a name is one
    run's alone.
    """
    spans: dict[tuple[str, Price], dict[str, list[Span]]] = {}
    for _, charge in charged:
        if key := _place(charge):
            runs = spans.setdefault(key, {})
            runs.setdefault(charge.run_id, []).append(charge.span)
    busy = {key: _occupancy(runs.values()) for key, runs in spans.items() if len(runs) > 1}
    divided: list[Charged] = []
    for usage, charge in charged:
        key = _place(charge)
        occupancy = busy.get(key) if key else None
        if occupancy is None or occupancy.share(charge) == 1:
            divided.append((usage, charge))
        else:
            divided += [(usage, replace(part, share=occupancy.share(part))) for part in by_day(charge)]
    return divided


def _place(charge: Charge) -> tuple[str, Price] | None:
    """The machine and its price: a record with another price must not take a share of what others pay."""
    return (charge.machine, charge.price) if charge.machine and charge.ended_us > charge.began_us else None


def _occupancy(runs: Iterable[list[Span]]) -> _Occupancy:
    changes: dict[int, int] = {}
    for spans in runs:
        for began, ended in _merged(spans):
            changes[began] = changes.get(began, 0) + 1
            changes[ended] = changes.get(ended, 0) - 1
    moments = sorted(moment for moment, change in changes.items() if change)
    paid_us, together_us, counts = [], [], []
    paid, together, count = 0.0, 0, 0
    for index, moment in enumerate(moments):
        if count:
            passed = moment - moments[index - 1]
            paid += passed / count
            together += passed if count > 1 else 0
        count += changes[moment]
        paid_us.append(paid)
        together_us.append(together)
        counts.append(count)
    return _Occupancy(moments, paid_us, together_us, counts)


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """The times that the spans cover, without overlaps."""
    began = ended = None
    for start, end in sorted(spans):
        if began is None or ended is None:
            began, ended = start, end
        elif start > ended:
            yield began, ended
            began, ended = start, end
        else:
            ended = max(ended, end)
    if began is not None and ended is not None:
        yield began, ended


def _launches(gangs: Iterable[GangUsage]) -> list[list[GangUsage]]:
    """Generations with nodes by what they worked on, oldest first; a launch that was recorded twice counts once."""
    found: dict[str, dict[int, GangUsage]] = {}
    for gang in (one for one in gangs if one.nodes):
        found.setdefault(gang.where, {}).setdefault(gang.generation, gang)
    return [[launched[number] for number in sorted(launched)] for launched in found.values()]


def _of_gang(execution: ExecutionUsage, gang: GangUsage, following: GangUsage | None) -> Iterator[Charge]:
    price = execution.price_of(gang.stage)
    over = max(_micro(node.released) for node in gang.nodes)
    if following is not None:
        over = max(over, min(_micro(node.started) for node in following.nodes))
    for node in gang.nodes:
        spans = _of_node(gang, node)
        # Nodes of a pool are held until the next generation begins; processes on this machine are not.
        released = spans[-1][1][1] if spans else 0
        if not gang.local and node.joined is not None and over > released:
            spans.append(("idle", (released, over)))
        # What a node used, it used until its release.
        shares = spread(node.used, [span for cause, span in spans if cause != "idle"])
        shares += [NOTHING] * (len(spans) - len(shares))
        for (cause, (began, ended)), used in zip(spans, shares, strict=True):
            yield Charge(
                run_id=execution.run_id,
                execution=execution.execution,
                stage=gang.stage,
                cause=cause,
                began_us=began,
                ended_us=ended,
                price=price,
                generation=gang.generation,
                node=node.number,
                used=used,
                machine=execution.machine if gang.local else "",
            )


def _of_node(gang: GangUsage, node: NodeUsage) -> list[tuple[Cause, Span]]:
    """A node's time from its launch to its release, cut at what happened; later moments never precede earlier ones."""
    started, released = _span(node)
    if gang.ended == _ONLY_A_SUM and gang.met is None and node.joined is None:
        return [("unknown", (started, released))]
    kept_nothing = gang.ended != "done" and gang.kept_step <= gang.first_step
    # Whoever launched the generations before: this one starts again.
    overhead: Cause = "retry" if gang.generation > 0 or kept_nothing else "start"
    after: Cause = "retry" if gang.ended != "done" else "end"
    causes: list[Cause] = [overhead, "gang", overhead, "work", after]
    moments = [started]
    for moment in (node.joined, gang.met, node.working, node.stopped):
        # A phase that never ended lasts until the release: the run waited for a node that never joined.
        at = released if moment is None else _micro(moment)
        moments.append(min(max(at, moments[-1]), released))
    if node.joined is None:
        causes[0] = "gang"
    moments.append(released)
    spans: list[tuple[Cause, Span]] = []
    for number, cause in enumerate(causes):
        span = (moments[number], moments[number + 1])
        spans += _steps(gang, node, span) if cause == "work" else [(cause, span)]
    return spans


def _steps(gang: GangUsage, node: NodeUsage, span: Span) -> list[tuple[Cause, Span]]:
    """The time of steps: what waited, what saved, what was lost, and the work. Shares are laid one after the other."""
    length = span[1] - span[0]
    waited = min(_micro(node.waited_s), length)
    saved = min(_micro(node.saved_s), length - waited)
    rest, done = length - waited - saved, gang.last_step - gang.first_step
    again = min(max(gang.last_step - gang.kept_step, 0), done)
    lost = round(rest * again / done) if done > 0 else (rest if gang.ended != "done" else 0)
    parts: list[tuple[Cause, int]] = [("work", rest - lost), ("data", waited), ("checkpoint", saved), ("lost", lost)]
    spans: list[tuple[Cause, Span]] = []
    at = span[0]
    for cause, part in parts:
        spans.append((cause, (at, at + part)))
        at += part
    return spans


def _of_machine(execution: ExecutionUsage) -> Iterator[Charge]:
    """The machine that carries the run out, while no nodes of the run work on the same machine."""
    began = _micro(execution.began)
    ended = max(_micro(execution.began if execution.ended is None else execution.ended), began)
    elsewhere = {gang.stage for gang in execution.gangs if not gang.local}
    own = [_span(node) for gang in execution.gangs if gang.local for node in gang.nodes]
    for stage, cause, span in _timeline(execution.stages, (began, ended), elsewhere):
        for free in _without(span, own):
            yield Charge(
                run_id=execution.run_id,
                execution=execution.execution,
                stage=stage,
                cause=cause,
                began_us=free[0],
                ended_us=free[1],
                price=execution.price_of(HERE),
                machine=execution.machine,
            )


def _at_start(execution: ExecutionUsage) -> Charge:
    """A charge of no length, for what a process used that was killed before any time was noted."""
    at, price = _micro(execution.began), execution.price_of(HERE)
    return Charge(execution.run_id, execution.execution, "run", "conductor", began_us=at, ended_us=at, price=price)


def _timeline(stages: Sequence[StageUsage], whole: Span, elsewhere: set[str]) -> Iterator[tuple[str, Cause, Span]]:
    """The stages in order, and the time between them; nothing overlaps."""
    at = whole[0]
    for stage in stages:
        began, ended = (min(max(_micro(one), at), whole[1]) for one in (stage.began, stage.ended))
        yield "run", "conductor", (at, began)
        cause: Cause = "retry" if stage.status in _FAILED else "work"
        if stage.name == "train" or stage.name in elsewhere:
            cause = "conductor"
        at = max(ended, began)
        yield stage.name, cause, (began, at)
    yield "run", "conductor", (at, whole[1])


def _without(span: Span, taken: Iterable[Span]) -> Iterator[Span]:
    """The parts of a span that no other span covers."""
    at = span[0]
    for began, ended in sorted(taken):
        if ended <= at or began >= span[1]:
            continue
        if began > at:
            yield (at, began)
        at = max(at, ended)
    if at < span[1]:
        yield (at, span[1])


def _span(node: NodeUsage) -> Span:
    """A node's time; a clock that was set back meanwhile makes it empty, not negative."""
    started = _micro(node.started)
    return started, max(_micro(node.released), started)


def _micro(seconds: float) -> int:
    return round(seconds * MICRO)
