"""Sums charges by what people ask for: a tag, the pipeline, the stage, the model, the run, the cause.

A sum has the requests, bytes and measured energy, too. What is unknown is named, and never counts as 0.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from data_contracts.costs import NOTHING, MonthLine, Resources
from data_contracts.errors import UsageError
from data_contracts.executions import ExecutionUsage
from tasks.costs.charges import MICRO, Charge, Charged, by_day, charges

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
# The same of what months keep, which does not say on which day and node something was used.
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
class Sum:
    """Charges that have the same words.

    Attributes:
        gpu_seconds: the known part; uncounted_s: node-seconds of nodes whose GPUs nobody knows.
        amounts: the known part by currency; unpriced_s: node-seconds whose price is unknown.
        causes: node-seconds by cause.
        so_far: runs that have not ended.
        used: requests, bytes and measured energy.
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
    used: Resources = NOTHING

    def add(self, charge: Charge) -> None:
        """Add one charge."""
        self.used += charge.used
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
        """Add what a run used in a month, for one stage, cause and machine."""
        self.used += line.used
        self.runs.add(line.run_id)
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
        if self.uncounted_s and not self.gpu_seconds:
            return "unknown"
        return f"{'at least ' if self.uncounted_s else ''}{self.gpu_seconds / 3600:,.2f}"

    @property
    def energy(self) -> str:
        """The measured energy in words; "" if nothing measured it."""
        return "" if not self.used.millijoules else f"{self.used.millijoules / 1000 / JOULES_PER_KWH:.3g} kWh"

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
            "put_requests": self.used.put_requests,
            "get_requests": self.used.get_requests,
            "written_bytes": self.used.written_bytes,
            "read_bytes": self.used.read_bytes,
            "joules": None if self.used.millijoules is None else self.used.millijoules / 1000,
            "gpu_busy_s": None if self.used.gpu_busy_ms is None else self.used.gpu_busy_ms / 1000,
        }


def in_words(amounts: Mapping[str, float]) -> str:
    """Amounts by currency, such as `0.0005 USD`; currencies are not added to each other."""
    return " + ".join(f"{amount:.4f} {currency}" for currency, amount in sorted(amounts.items()))


def check_words(by: Sequence[str], executions: Sequence[ExecutionUsage]) -> None:
    """UsageError for a word that is neither one of ours nor a tag of any run; it names those that are near."""
    known = [*_OWN, *sorted({name for one in executions for name in one.tags})]
    for word in by:
        # Where nothing has run yet, nobody knows which tags there are.
        if word not in known and executions:
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
        lines: what runs used, from the kept figures of months.
    """
    groups: dict[tuple[str, ...], Sum] = {}
    total = Sum(so_far=so_far)
    if "day" in by:
        charged = [(usage, part) for usage, charge in charged for part in by_day(charge)]
    for usage, charge in charged:
        words = tuple(_word(name, usage, charge) for name in by)
        group = groups.setdefault(words, Sum(words=words, so_far=so_far))
        for each in (group, total):
            each.add(charge)
    for line in lines:
        words = tuple(_OF_LINE[name](line) if name in _OF_LINE else line.tags.get(name, NOT_TAGGED) for name in by)
        for each in (groups.setdefault(words, Sum(words=words, so_far=so_far)), total):
            each.add_line(line)
    # Days stand in their order; whatever else there is, by how much of the nodes it took.
    days = [index for index, name in enumerate(by) if name == "day"]
    order = lambda each: ([each.words[index] for index in days], -each.node_seconds, each.words)  # noqa: E731
    return sorted(groups.values(), key=order), total


def _word(name: str, usage: ExecutionUsage, charge: Charge) -> str:
    own = _OWN.get(name)
    return own(usage, charge) if own is not None else usage.tags.get(name, NOT_TAGGED)


def _rounded(amounts: dict[str, float], digits: int) -> dict[str, float]:
    return {currency: round(amount, digits) for currency, amount in sorted(amounts.items())}
