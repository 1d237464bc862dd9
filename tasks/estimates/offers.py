"""The machines of the price book that a training fits on, with what it would cost there and how long it would take.

Begins with how much memory each strategy needs on a device, and which strategy is recommended. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from data_contracts.messages.commands import ModuleSizes, StepMemory
from data_contracts.pipeline_spec import TrainSpec
from data_contracts.pipeline_spec.train import is_hsdp, mesh_of
from data_contracts.price_book import MachinePrice, Term, price_on
from infra.prices import Machine
from infra.quantities import SECONDS, in_words, size
from tasks.stages.train import needed
from training.order import Plan, make_plan

# What CUDA, its libraries and fragmentation may take of a device: a tenth is left for them.
USABLE = 0.9
MOST_OFFERS = 8
# Times are known to some percent at best, so an offer that is less than 5 % faster does not count as faster.
FASTER = 0.95


@dataclass(frozen=True)
class MemoryNeed:
    """What a strategy needs on each device.

    Attributes:
        bytes: of tensors; without activations if the step could not be measured.
        micro_batch: rows that a device takes at once.
    """

    strategy: str
    nodes: int
    devices: int
    micro_batch: int
    bytes: int

    def fits(self, memory_bytes: int) -> bool:
        """Whether a device with so much memory is enough."""
        return self.bytes <= USABLE * memory_bytes

    def to_json(self) -> dict[str, object]:
        """For a program."""
        return {
            "strategy": self.strategy,
            "nodes": self.nodes,
            "devices": self.devices,
            "micro_batch": self.micro_batch,
            "per_device_bytes": self.bytes,
        }


def layout_plan(train: TrainSpec, ranks: int) -> Plan | None:
    """How so many ranks divide a global batch; None if they cannot."""
    return None if train.global_batch_size % ranks else make_plan(train.global_batch_size, train, ranks)


def strategies(train: TrainSpec, nodes: int, devices: int) -> list[str]:
    """The strategies that these ranks can have, the simplest first."""
    if nodes * devices == 1:
        return ["single"]
    two_levels = is_hsdp(nodes, devices, train.shard_ranks if nodes * devices == train.world_size else None)
    return ["ddp", *(["hsdp"] if two_levels else []), "fsdp"]


def needs(train: TrainSpec, sizes: ModuleSizes, nodes: int, devices: int) -> list[MemoryNeed]:
    """What each strategy needs on `nodes` × `devices` ranks, the simplest strategy first; none if they do not fit."""
    plan = layout_plan(train, nodes * devices)
    if plan is None:
        return []
    found = []
    for strategy in strategies(train, nodes, devices):
        shard = mesh_of(strategy, train.shard_ranks or devices, nodes * devices)[1]
        num_bytes = need_bytes(sizes, strategy, shard, plan.micro_batch, accumulates=plan.accumulate > 1)
        found.append(MemoryNeed(strategy, nodes, devices, plan.micro_batch, num_bytes))
    return found


def need_bytes(sizes: ModuleSizes, strategy: str, shard: int, rows: int, *, accumulates: bool) -> int:
    """Bytes of tensors on each device, at the moment when most are alive.

    Args:
        shard: ranks over which a replica is sharded; rows: that the device takes at once.
        accumulates: whether gradients of earlier micro-batches are kept meanwhile.
    """
    if not sizes.steps:
        return needed(sizes, shard, sizes.unit)
    step, update = at(sizes.steps, rows, "step"), at(sizes.steps, rows, "update")
    kept = sizes.parameters + sizes.gradients + sizes.state
    if shard > 1:
        return sizes.buffers - (-kept // shard) + max(step + 2 * sizes.unit, -(-update // shard))
    peak = at(sizes.steps, rows, "peak")
    if accumulates:
        peak = max(peak, kept + sizes.buffers + step)
    # DDP keeps each gradient a second time, in the buckets that it sends.
    return peak + (sizes.gradients if strategy == "ddp" else 0)


def at(steps: Sequence[StepMemory], rows: int, what: str) -> int:
    """A figure for a number of rows: as measured, else on the line through the two nearest measurements."""
    known = {one.rows: int(getattr(one, what)) for one in steps}
    if rows in known:
        return known[rows]
    if len(known) == 1:
        return next(iter(known.values()))
    first, second = sorted(sorted(known, key=lambda one: abs(one - rows))[:2])
    slope = (known[second] - known[first]) / (second - first)
    return max(round(known[first] + slope * (rows - first)), 0)


def recommendation(
    needs: Sequence[MemoryNeed], memory_bytes: int, machine: str, *, whole: bool, on_cpu: bool = False
) -> str:
    """One sentence: which strategy to take on a machine, and why none that is more complex.

    Args:
        needs: of one layout, the simplest strategy first.
        memory_bytes: of a device; 0 if unknown.
        whole: whether activations are counted.
    """
    simplest = needs[0]
    without = "" if whole else ", without activations"
    if on_cpu:
        return f"{simplest.strategy} needs {size(simplest.bytes)} a rank{without}; ranks on a CPU share its memory."
    if not memory_bytes:
        return (
            f"{simplest.strategy} needs {size(simplest.bytes)} a device{without}; the price book does not know the "
            f"memory of {machine}, so it is unknown whether that fits."
        )
    place = f"{simplest.nodes} × {machine}"
    fit = next((need for need in needs if need.fits(memory_bytes)), None)
    if fit is None:
        least = min(needs, key=lambda one: one.bytes)
        return (
            f"No strategy fits on {place}: {least.strategy} needs the least, {_of(least, memory_bytes)} a device"
            f"{without}."
        )
    if fit is simplest:
        others = " and ".join(need.strategy for need in needs[1:])
        rest = f"; {others} {'are' if len(needs) > 2 else 'is'} not needed" if others else ""
        return f"{fit.strategy} fits on {place} with {_of(fit, memory_bytes)} a device{without}{rest}."
    return (
        f"{fit.strategy} fits on {place} with {_of(fit, memory_bytes)} a device{without}; {simplest.strategy} would "
        f"need {size(simplest.bytes)}."
    )


def _of(need: MemoryNeed, memory_bytes: int) -> str:
    return f"{size(need.bytes)} of {size(memory_bytes)}"


@dataclass(frozen=True)
class Offer:
    """A machine and a number of nodes on which the training fits.

    Attributes:
        devices: used on each node.
        per_hour: of all nodes, in `currency`.
        time_s: of the training, without interruptions of spot nodes; None if it is unknown.
        region: where the price holds; "": everywhere.
    """

    machine: str
    nodes: int
    devices: int
    term: Term
    strategy: str
    per_device_bytes: int
    memory_bytes: int
    per_hour: float
    currency: str
    time_s: float | None = None
    region: str = ""

    @property
    def place(self) -> str:
        """The machine, with its term and region if the price is not on demand and for everywhere."""
        words = [word for word in ("spot" if self.term == "spot" else "", self.region) if word]
        return f"{self.machine} ({', '.join(words)})" if words else self.machine

    @property
    def amount(self) -> float | None:
        """What the training costs; None if its time is unknown."""
        return None if self.time_s is None else self.per_hour * self.time_s / 3600

    def to_json(self) -> dict[str, object]:
        """For a program."""
        return {**vars(self), "amount": self.amount}


def offers(
    machines: Iterable[Machine],
    day: str,
    layouts: Callable[[int], Iterable[tuple[int, int]]],
    needs: Callable[[int, int], Sequence[MemoryNeed]],
    time_s: Callable[[str, int], float | None],
) -> list[Offer]:
    """Every offer of machines whose memory and price the book knows, by currency; the cheapest first, unknown last.

    Args:
        layouts: devices of a node → the nodes and devices to look at.
        needs: nodes and devices → what strategies need there.
        time_s: machine and ranks → how long the training takes.
    """
    found: list[Offer] = []
    for machine in machines:
        if not machine.memory_bytes or not machine.devices:
            continue
        for price in _prices(machine, day):
            for nodes, devices in layouts(machine.devices):
                need = next((one for one in needs(nodes, devices) if one.fits(machine.memory_bytes)), None)
                if need is None:
                    continue
                found.append(
                    Offer(
                        machine=machine.name,
                        nodes=nodes,
                        devices=devices,
                        term=price.term,
                        strategy=need.strategy,
                        per_device_bytes=need.bytes,
                        memory_bytes=machine.memory_bytes,
                        per_hour=price.per_hour * nodes,
                        currency=price.currency,
                        time_s=time_s(machine.name, nodes * devices),
                        region=price.region,
                    )
                )
    return sorted(found, key=_order)


def _prices(machine: Machine, day: str) -> Iterator[MachinePrice]:
    """The prices of a machine that hold on a day: one for each term and region."""
    for term, region in sorted({(one.term, one.region) for one in machine.prices}):
        price = price_on(machine.prices, day, region, term)
        if price is not None and price.region == region:
            yield price


def shortlist(offers: Sequence[Offer]) -> list[Offer]:
    """The offers worth showing: those with known cost that nothing beats in cost and time, the cheapest of each term,
    and of each other machine the cheapest; at most MOST_OFFERS, of which each currency has as many.
    """
    each = max(MOST_OFFERS // max(len({offer.currency for offer in offers}), 1), 1)
    kept: list[Offer] = []
    for offer in offers:
        alike = [other for other in kept if other.currency == offer.currency]
        if offer.time_s is None:
            beaten = any(other.machine == offer.machine and other.term == offer.term for other in alike)
        else:
            # The cheapest come first, so one that follows must be faster; one device is always worth a look, and so is
            # a node that is not taken away.
            same = [other for other in alike if other.time_s is not None]
            faster = all(offer.time_s < FASTER * other.time_s for other in same if other.time_s is not None)
            is_single = offer.nodes * offer.devices == 1 and all(other.nodes * other.devices > 1 for other in same)
            beaten = not (faster or is_single or all(other.term != offer.term for other in same))
        if beaten:
            continue
        if len(alike) == each > 1 and all(other.term != offer.term for other in alike):
            kept.remove(alike.pop())  # the fastest or dearest of the other term
        if len(alike) < each:
            kept.append(offer)
    return kept[:MOST_OFFERS]


def verdict(offers: Sequence[Offer]) -> str:
    """One sentence: the cheapest, and whether it is worth distributing at all; one for each currency."""
    if not offers:
        return "No machine whose memory and price the book knows can carry this training out."
    currencies = sorted({offer.currency for offer in offers})
    if len(currencies) == 1:
        return _of_currency(offers)
    return " ".join(
        f"In {name}: {_of_currency([offer for offer in offers if offer.currency == name])}" for name in currencies
    )


def _of_currency(offers: Sequence[Offer]) -> str:
    cheapest = offers[0]
    place = f"{cheapest.nodes} × {cheapest.place}"
    alone = next((offer for offer in offers if offer.nodes * offer.devices == 1), None)
    if cheapest.amount is None:
        sentence = (
            f"The cheapest that fits is {place} at {cheapest.per_hour:.4g} {cheapest.currency} an hour; how long it "
            "takes there is unknown, because this pipeline never trained there."
        )
        return sentence + (" One device is enough: distributing can only save time." if alone is not None else "")
    sentence = f"The cheapest is {place} with {cheapest.strategy}: {_money(cheapest)} in {_time(cheapest)}."
    if alone is None or alone.amount is None:
        return sentence
    if alone is cheapest:
        same = [offer for offer in offers if offer.amount is not None and _money(offer) == _money(alone)]
        quickest = min(same, key=lambda one: one.time_s or 0.0)
        if (quickest.time_s or 0.0) < (alone.time_s or 0.0):
            return f"{sentence} {quickest.nodes} × {quickest.place} costs the same and takes {_time(quickest)}."
        return f"{sentence} Do not distribute: one device is the cheapest."
    return f"{sentence} One device on {alone.place} would take {_time(alone)} and cost {_money(alone)}."


def time_by_speeds(times: Mapping[str, float], speeds: Mapping[str, float], machine: str) -> float | None:
    """A time on `machine`: of a run there, else of one elsewhere if the book knows how fast both machines are."""
    if machine in times:
        return times[machine]
    known = sorted(name for name in times if speeds.get(name))
    return times[known[0]] * speeds[known[0]] / speeds[machine] if known and speeds.get(machine) else None


def _order(offer: Offer) -> tuple[str, bool, float, int]:
    amount = offer.amount
    return offer.currency, amount is None, offer.per_hour if amount is None else amount, offer.nodes * offer.devices


def figure(amount: float) -> str:
    """An amount of money with as many digits as it needs."""
    return f"{amount:,.4f}" if amount < 1 else f"{amount:,.2f}"


def money(amount: float, currency: str) -> str:
    """An amount of money in words."""
    return f"{figure(amount)} {currency}"


def _money(offer: Offer) -> str:
    return money(offer.amount or 0.0, offer.currency)


def _time(offer: Offer) -> str:
    return in_words(offer.time_s or 0.0, SECONDS)
