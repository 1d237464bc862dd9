"""Sums charges by what people ask for: a tag, the pipeline, the stage, the model, the run, the cause.

A sum has what requests, bytes and energy cost, too: amounts by the store's prices, kilowatt-hours and carbon. What is
unknown is named, and never counts as 0.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from data_contracts.costs import NOTHING, MonthLine, Resources
from data_contracts.errors import UsageError
from data_contracts.executions import ExecutionUsage, GangUsage
from data_contracts.resolved import StoreRates
from tasks.costs.charges import MICRO, Charge, Charged, by_day, charges

GB = 10**9
JOULES_PER_KWH = 3_600_000.0
NOT_TAGGED = "–"
# What a sum may be by; any other word is the name of a tag.
_OWN: dict[str, Callable[[ExecutionUsage, Charge], str]] = {
    "pipeline": lambda one, charge: one.pipeline,
    "model": lambda one, charge: one.model,
    "run": lambda one, charge: one.run_id,
    "execution": lambda one, charge: one.execution,
    "stage": lambda one, charge: charge.stage,
    "cause": lambda one, charge: charge.cause,
    "machine": lambda one, charge: charge.price.place,
    "generation": lambda one, charge: "" if charge.generation is None else str(charge.generation),
    "node": lambda one, charge: "" if charge.node is None else str(charge.node),
    "day": lambda one, charge: datetime.fromtimestamp(charge.began_us / MICRO, UTC).date().isoformat(),
}
# The same of what months keep of deleted runs, which does not say on which day and node something was used.
_OF_LINE: dict[str, Callable[[MonthLine], str]] = {
    **dict.fromkeys(_OWN, lambda line: NOT_TAGGED),
    "pipeline": lambda line: line.pipeline,
    "model": lambda line: line.model,
    "run": lambda line: line.run_id,
    "stage": lambda line: line.stage,
    "cause": lambda line: line.cause,
    "machine": lambda line: line.machine,
}


@dataclass
class ResourceCosts:
    """What charges use beside time, added up, and what that costs.

    Attributes:
        used: requests, bytes and measured energy.
        joules: measured and estimated; estimated_joules: the part that is estimated from the machine's power.
        unmetered_s: node-seconds whose energy is unknown.
        grams: of CO2 equivalent, as far as known; ungraded_joules: energy of an unknown carbon intensity.
        amounts: for requests and egress, by currency, as far as known; unpriced: what has no known price.
        monthly: what a month of keeping the written bytes costs, by currency.
    """

    used: Resources = NOTHING
    joules: float = 0.0
    estimated_joules: float = 0.0
    unmetered_s: float = 0.0
    grams: float = 0.0
    ungraded_joules: float = 0.0
    amounts: dict[str, float] = field(default_factory=dict)
    unpriced: set[str] = field(default_factory=set)
    monthly: dict[str, float] = field(default_factory=dict)

    def add(self, charge: Charge, rates: StoreRates | None) -> None:
        """Add one charge of a run whose store has these rates."""
        self.used += charge.used
        self._add_energy(charge)
        used, region = charge.used, charge.price.region
        for name, amount in store_amounts(used, rates, region).items():
            if amount is None:
                self.unpriced.add(name)
            elif rates is not None and amount:
                into = self.monthly if name == "storage" else self.amounts
                into[rates.currency] = into.get(rates.currency, 0.0) + amount

    def add_line(self, line: MonthLine) -> None:
        """Add what one run used in a month, from the month's kept figures, which do not have the store's prices."""
        used = line.used
        self.used += used
        counts = {
            "requests": used.put_requests + used.get_requests,
            "egress": used.read_bytes,
            "storage": used.written_bytes,
        }
        self.unpriced |= {name for name, count in counts.items() if count}
        self.joules += line.joules
        estimated = line.joules - (used.millijoules or 0) / 1000
        # Two sums of the same figures may differ in their last digits.
        self.estimated_joules += estimated if estimated > line.joules * 1e-6 else 0.0
        self.unmetered_s += 0.0 if line.joules else line.node_seconds
        self.grams += line.grams
        self.ungraded_joules += 0.0 if line.grams else line.joules

    def _add_energy(self, charge: Charge) -> None:
        joules = charge.joules
        if joules is None:
            self.unmetered_s += charge.node_seconds
            return
        self.joules += joules
        if charge.used.millijoules is None:
            self.estimated_joules += joules
        if charge.price.g_per_kwh is None:
            self.ungraded_joules += joules
        else:
            self.grams += joules / JOULES_PER_KWH * charge.price.g_per_kwh

    @property
    def energy(self) -> str:
        """The energy in words, such as `1.25 kWh`, `at least 0.20 kWh (estimated)` or `unknown`."""
        if not self.joules:
            return "unknown"
        how = "" if not self.estimated_joules else " (estimated)"
        return f"{'at least ' if self.unmetered_s else ''}{self.joules / JOULES_PER_KWH:.3g} kWh{how}"

    @property
    def carbon(self) -> str:
        """The carbon in words, such as `0.31 kg`; `unknown` if no intensity is known."""
        if not self.joules or self.ungraded_joules == self.joules:
            return "unknown"
        return f"{'at least ' if self.unmetered_s or self.ungraded_joules else ''}{self.grams / 1000:.3g} kg"

    def to_json(self) -> dict[str, object]:
        """The sums for a program; what is unknown is null."""
        known, used = bool(self.joules), self.used
        graded = known and self.ungraded_joules < self.joules
        return {
            "put_requests": used.put_requests,
            "get_requests": used.get_requests,
            "written_bytes": used.written_bytes,
            "read_bytes": used.read_bytes,
            "store_amounts": None if self.unpriced - {"storage"} else _rounded(self.amounts, 9),
            "known_store_amounts": _rounded(self.amounts, 9),
            "storage_per_month": None if "storage" in self.unpriced else _rounded(self.monthly, 9),
            "store_unpriced": sorted(self.unpriced),
            "joules": round(self.joules, 3) if known else None,
            "estimated_joules": round(self.estimated_joules, 3),
            "unmetered_s": round(self.unmetered_s, 6),
            "grams_co2e": round(self.grams, 6) if graded else None,
            "ungraded_joules": round(self.ungraded_joules, 3),
            "gpu_busy_s": None if used.gpu_busy_ms is None else used.gpu_busy_ms / 1000,
        }


def store_amounts(used: Resources, rates: StoreRates | None, region: str) -> dict[str, float | None]:
    """What requests, egress and a month of storage cost by a store's rates; None where that is unknown.

    Bytes are egress if they are read in another region than the store's; without both regions, nobody knows.

    Args:
        region: of the machine that used them; "" if unknown.
    """
    puts, gets = used.put_requests, used.get_requests
    if rates is None:
        counts = {"requests": puts + gets, "egress": used.read_bytes, "storage": used.written_bytes}
        return {name: None if count else 0.0 for name, count in counts.items()}
    if region and rates.region:
        per_gb = rates.egress_per_gb if region != rates.region else 0.0
    else:
        per_gb = 0.0 if rates.egress_per_gb == 0 else None
    return {
        "requests": _plus(_times(puts / 1000, rates.put_per_1000), _times(gets / 1000, rates.get_per_1000)),
        "egress": _times(used.read_bytes / GB, per_gb),
        "storage": _times(used.written_bytes / GB, rates.per_gb_month),
    }


def _times(count: float, price: float | None) -> float | None:
    return 0.0 if not count else None if price is None else count * price


def _plus(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


@dataclass
class Sum:
    """Charges that have the same words.

    Attributes:
        gpu_seconds: the known part; uncounted_s: node-seconds of nodes whose GPUs nobody knows.
        amounts: the known part by currency; unpriced_s: node-seconds whose price is unknown.
        causes: node-seconds by cause.
        samples, epochs: that trainings consumed and kept; 0 if unknown.
        so_far: runs that have not ended.
        resources: requests, bytes, energy and carbon.
        has_deleted: whether runs are in it that gc deleted, from the kept figures of months.
    """

    words: tuple[str, ...] = ()
    runs: set[str] = field(default_factory=set)
    so_far: set[str] = field(default_factory=set)
    node_seconds: float = 0.0
    gpu_seconds: float = 0.0
    uncounted_s: float = 0.0
    unpriced_s: float = 0.0
    amounts: dict[str, float] = field(default_factory=dict)
    causes: dict[str, float] = field(default_factory=dict)
    samples: float = 0.0
    epochs: float = 0.0
    resources: ResourceCosts = field(default_factory=ResourceCosts)
    has_deleted: bool = False

    def add(self, charge: Charge, rates: StoreRates | None = None) -> None:
        """Add one charge; `rates`: of the store of its run."""
        self.resources.add(charge, rates)
        seconds = charge.node_seconds
        self.runs.add(charge.run_id)
        self.node_seconds += seconds
        self.gpu_seconds += charge.gpu_seconds or 0.0
        self.uncounted_s += seconds if charge.gpu_seconds is None else 0.0
        self.causes[charge.cause] = self.causes.get(charge.cause, 0.0) + seconds
        if charge.amount is None:
            self.unpriced_s += seconds
        else:
            currency = charge.price.currency
            self.amounts[currency] = self.amounts.get(currency, 0.0) + charge.amount

    def add_line(self, line: MonthLine) -> None:
        """Add what a run that gc deleted used in a month, for one stage, cause and machine."""
        self.resources.add_line(line)
        self.runs.add(line.run_id)
        self.has_deleted = True
        self.node_seconds += line.node_seconds
        self.gpu_seconds += line.gpu_seconds
        self.uncounted_s += line.uncounted_s
        self.unpriced_s += line.unpriced_s
        self.causes[line.cause] = self.causes.get(line.cause, 0.0) + line.node_seconds
        if line.amount or not line.unpriced_s:
            self.amounts[line.currency] = self.amounts.get(line.currency, 0.0) + line.amount

    @property
    def goodput(self) -> float | None:
        """The share of node-seconds that was work; None without node-seconds, and where the cause is unknown."""
        known_s = self.node_seconds - self.causes.get("unknown", 0.0)
        return self.causes.get("work", 0.0) / known_s if known_s > 0 else None

    @property
    def wasted_s(self) -> float:
        """Node-seconds that were not work, without those of an unknown cause."""
        return sum(seconds for cause, seconds in self.causes.items() if cause not in ("work", "unknown"))

    @property
    def money(self) -> str:
        """The amount in words, such as `0.0005 USD`, `at least 0.2000 EUR` or `unknown`."""
        if not self.amounts:
            return "unknown"
        return f"{'at least ' if self.unpriced_s else ''}{in_words(self.amounts)}"

    @property
    def gpu_hours(self) -> str:
        """GPU-hours in words, such as `1.50`, `at least 1.50` or `unknown`."""
        return in_gpu_hours(self.gpu_seconds, self.uncounted_s)

    def per(self, count: float) -> dict[str, float] | None:
        """The amounts divided by a count; None if either is not known, as what deleted runs trained is."""
        unknown = count <= 0 or self.unpriced_s or self.has_deleted or not self.amounts
        return None if unknown else _rounded({name: amount / count for name, amount in self.amounts.items()}, 6)

    def to_json(self, by: Sequence[str]) -> dict[str, object]:
        """The sum for a program; what is unknown is null."""
        return {
            **dict(zip(by, self.words, strict=True)),
            "runs": len(self.runs),
            "so_far": len(self.so_far & self.runs),
            "node_seconds": round(self.node_seconds, 6),
            "gpu_seconds": None if self.uncounted_s else round(self.gpu_seconds, 6),
            "known_gpu_seconds": round(self.gpu_seconds, 6),
            "uncounted_gpus_s": round(self.uncounted_s, 6),
            "amounts": None if self.unpriced_s else _rounded(self.amounts, 6),
            "known_amounts": _rounded(self.amounts, 6),
            "unpriced_s": round(self.unpriced_s, 6),
            "causes": {cause: round(seconds, 6) for cause, seconds in sorted(self.causes.items())},
            "goodput": self.goodput,
            "per_epoch": self.per(self.epochs),
            "per_million_samples": self.per(self.samples / 1e6),
            **self.resources.to_json(),
        }


def in_gpu_hours(known_s: float, uncounted_s: float) -> str:
    """GPU-hours in words, where the GPUs of some node-seconds may be unknown."""
    if uncounted_s and not known_s:
        return "unknown"
    return f"{'at least ' if uncounted_s else ''}{known_s / 3600:,.2f}"


def in_words(amounts: Mapping[str, float]) -> str:
    """Amounts by currency, such as `0.0005 USD`; currencies are not added to each other."""
    return " + ".join(f"{amount:.4f} {currency}" for currency, amount in sorted(amounts.items()))


def check_words(by: Sequence[str], executions: Iterable[ExecutionUsage], lines: Iterable[MonthLine] = ()) -> None:
    """UsageError for a word that is neither one of ours nor a tag of any run; it names those that are near."""
    counted: list[ExecutionUsage | MonthLine] = [*executions, *lines]
    tags = {name for one in counted for name in one.tags}
    known = [*_OWN, *sorted(tags)]
    for word in by:
        # Where nothing has run yet, nobody knows which tags there are.
        if word not in known and counted:
            near = difflib.get_close_matches(word, known, n=2)
            remedy = f"Did you mean {' or '.join(near)}?" if near else f"Known are {', '.join(known)}."
            raise UsageError(f"--by: no run has a tag {word!r}.", remedy=remedy)


def charged(executions: Iterable[ExecutionUsage], since_s: float, until_s: float) -> list[Charged]:
    """The charges of executions between two times; a charge that crosses a bound is cut there."""
    since, until = round(since_s * MICRO), round(until_s * MICRO)
    found = []
    for one in executions:
        for charge in charges(one):
            began, ended = max(charge.began_us, since), min(charge.ended_us, until)
            if ended > began or since <= charge.began_us == charge.ended_us < until:
                found.append((one, charge.cut(began, ended)))
    return found


def sums(
    charged: Sequence[Charged],
    by: Sequence[str],
    so_far: set[str],
    lines: Iterable[MonthLine] = (),
) -> tuple[list[Sum], Sum]:
    """One sum for each combination of words, the most node-seconds first, and the sum of all.

    Args:
        so_far: ids of runs that have not ended.
        lines: what runs used that gc deleted, from the kept figures of months.
    """
    groups: dict[tuple[str, ...], Sum] = {}
    total = Sum(so_far=so_far)
    executions: dict[str, tuple[ExecutionUsage, Sum]] = {}
    trained_us: dict[tuple[str, int], int] = {}
    # What a training consumed belongs to a run as a whole, not to one of its stages or causes.
    of_runs = all(name in ("pipeline", "model", "run", "execution") or name not in _OWN for name in by)
    if "day" in by:
        charged = [(usage, part) for usage, charge in charged for part in by_day(charge)]
    for usage, charge in charged:
        words = tuple(_word(name, usage, charge) for name in by)
        group = groups.setdefault(words, Sum(words=words, so_far=so_far))
        executions[usage.run_id + usage.execution] = usage, group
        if charge.stage == "train" and charge.generation is not None:
            launched = usage.run_id + usage.execution, charge.generation
            trained_us[launched] = trained_us.get(launched, 0) + charge.ended_us - charge.began_us
        for each in (group, total):
            each.add(charge, usage.rates)
    for line in lines:
        words = tuple(_OF_LINE[name](line) if name in _OF_LINE else line.tags.get(name, NOT_TAGGED) for name in by)
        for each in (groups.setdefault(words, Sum(words=words, so_far=so_far)), total):
            each.add_line(line)
    counted: set[tuple[str, str, int]] = set()
    for name, (usage, group) in executions.items():
        whole_us = _trained_us(usage)
        for gang in usage.gangs:
            launch = (usage.run_id, gang.where, gang.generation)
            if gang.stage == "train" and launch not in counted:
                counted.add(launch)
                # Bounds that cut a training's cost cut what it kept in the same proportion.
                charged_us, of_us = trained_us.get((name, gang.generation), 0), whole_us.get(gang.generation, 0)
                share = charged_us / of_us if of_us else 0.0
                _progress(gang, share, [total, group] if of_runs else [total])
    # Days stand in their order; whatever else there is, by how much of the nodes it took.
    days = [index for index, name in enumerate(by) if name == "day"]
    order = lambda each: ([each.words[index] for index in days], -each.node_seconds, each.words)  # noqa: E731
    return sorted(groups.values(), key=order), total


def _trained_us(usage: ExecutionUsage) -> dict[int, int]:
    """The node-microseconds of each generation that an execution trained with, by its number."""
    by_generation: dict[int, int] = {}
    for charge in charges(usage) if any(gang.stage == "train" for gang in usage.gangs) else ():
        if charge.stage == "train" and charge.generation is not None:
            by_generation[charge.generation] = (
                by_generation.get(charge.generation, 0) + charge.ended_us - charge.began_us
            )
    return by_generation


def _progress(gang: GangUsage, share: float, into: list[Sum]) -> None:
    """Add a share of what a generation consumed and kept."""
    kept = max(gang.kept_step - gang.first_step, 0) * share
    for each in into:
        if gang.last_step:
            each.samples += gang.samples * kept / gang.last_step
        if gang.steps_per_epoch:
            each.epochs += kept / gang.steps_per_epoch


def _word(name: str, usage: ExecutionUsage, charge: Charge) -> str:
    own = _OWN.get(name)
    return own(usage, charge) if own is not None else usage.tags.get(name, NOT_TAGGED)


def _rounded(amounts: dict[str, float], digits: int) -> dict[str, float]:
    return {currency: round(amount, digits) for currency, amount in sorted(amounts.items())}
