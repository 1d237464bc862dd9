"""The estimate of a run: memory by strategy, time and cost by stage, and the cheapest machines on which it fits.

A child process is asked how much memory the module and a step of it take; the user's code runs there alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.executions import HERE
from data_contracts.handoffs import Dataset
from data_contracts.messages.commands import MODULE_MEMORY, ModuleSizes
from data_contracts.resolved import UNKNOWN_PRICE, Price
from infra import prices
from infra.child import run_child
from infra.prices import Machine
from infra.records.handoffs import find_dataset_by_id
from tasks.estimates.earlier_runs import (
    Past,
    Span,
    TrainingTime,
    most_s,
    past_of,
    samples_ahead,
    settings_of,
    stage_time,
    training_time,
)
from tasks.estimates.offers import (
    MemoryNeed,
    Offer,
    layout_plan,
    needs,
    offers,
    recommendation,
    shortlist,
    time_by_speeds,
    verdict,
)
from tasks.run.resolve import resolved_runs
from tasks.run.run import Run, RunInputs
from tasks.stages.shard import shard
from tasks.stages.stage import EarlierHandoffs
from tasks.stages.train import size_request
from tasks.stages.trainings import recorded

# A step without values takes seconds; what takes longer is not worth the wait before a run.
MOST_S = 60.0
# Rows of a measured step: more take longer and tell no more, because memory grows evenly with rows.
MOST_ROWS = 1024
TRAIN = "train"
# Numbers of nodes that the table of machines looks at.
NODES = (1, 2, 4, 8)


def measure(run: Run, dataset: Dataset | None, rows: Sequence[int]) -> tuple[ModuleSizes | None, str]:
    """The module's memory and first weights; with the dataset also steps of these rows. None, and why, if unknown.

    Args:
        dataset: with the columns that the training will read.

    Raises:
        UsageError: the module cannot be built, sharded or begun as the spec says.
    """
    limited = {min(max(count, 2), MOST_ROWS) for count in rows}
    wanted = sorted(limited | {max(limited) * 2} if len(limited) == 1 else limited)
    own = "data" in run.resolved.lightning
    stepped = {} if dataset is None or own else {"columns": dataset.columns, "rows": wanted}
    request = size_request(run, dataset).model_copy(
        update={**stepped, "accelerated": not prices.on_cpu(run.resolved.lightning)}
    )
    try:
        sizes = run_child(MODULE_MEMORY, request, project=run.project(), withhold=run.withholds, limit=MOST_S)
    except UsageError:
        raise  # it is refused, also where it is only planned
    except TrainwrightError as error:
        return None, error.message
    if sizes.unknown:
        return None, sizes.unknown
    if own:
        return sizes, "the config brings its own data module"
    if dataset is None:
        return sizes, "no dataset of this pipeline is made yet (`trainwright shard SPEC` makes it)"
    return sizes, sizes.unprobed


@dataclass(frozen=True)
class StageEstimate:
    """A stage that will run: its time, what that rests on, and its cost by currency, in an amount per expected second.

    Attributes:
        time: None if it is unknown.
        rates: price per second by currency; None if a price is unknown.
        unpriced: the machines and pools whose price is unknown.
    """

    stage: str
    time: Span | None
    why: str
    rates: dict[str, float] | None
    unpriced: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, object]:
        """For a program."""
        times = {"time_s": None} if self.time is None else self.time.to_json("time_s")
        return {"stage": self.stage, "why": self.why, **times, "amounts": self.amounts}

    @property
    def amounts(self) -> dict[str, float] | None:
        """The expected cost by currency; None if it is unknown."""
        if self.time is None or self.rates is None:
            return None
        return {currency: round(rate * self.time.expected, 6) for currency, rate in self.rates.items()}


def stage_estimates(run: Run, past: Past, ahead: Sequence[str], training: TrainingTime | None) -> list[StageEstimate]:
    """The stages that will run, and what lies between them, which has no name."""
    raw_bytes = sum(one.bytes for one in run.resolved.files)
    found = []
    for name in ahead:
        if name == TRAIN and training is not None:
            found.append(_estimate(run, name, training.span, training.why))
            continue
        span = stage_time(past.stages, name, raw_bytes)
        runs = len({one.run_id for one in past.stages if one.stage == name})
        why = f"{runs} earlier run{'' if runs == 1 else 's'}" if span is not None else "no earlier run"
        found.append(_estimate(run, name, span, why))
    between = stage_time(past.stages, "", 0)
    if between is not None:
        found.append(_estimate(run, "", between, "what lies between stages"))
    return found


def _estimate(run: Run, name: str, time: Span | None, why: str) -> StageEstimate:
    nodes = _nodes(run, name)
    unpriced = frozenset(price.place for price, _ in nodes if price.per_hour is None)
    return StageEstimate(name, time, why, _rates(nodes), unpriced)


def _nodes(run: Run, stage: str) -> list[tuple[Price, int]]:
    """What a stage occupies: its nodes, and the machine that carries the run out unless the nodes are its processes."""
    resolved, own = run.resolved, run.spec.train if stage == TRAIN else getattr(run.spec, stage or "-", None)
    here, pool = resolved.price_of(HERE) or UNKNOWN_PRICE, getattr(own, "pool", None)
    nodes: list[tuple[Price, int]] = []
    if stage == TRAIN:
        nodes.append((resolved.price, run.spec.train.nodes))
    elif pool is not None:
        nodes.append((resolved.price_of(stage) or here, getattr(own, "nodes", None) or 1))
    return nodes if nodes and pool is None else [*nodes, (here, 1)]


def _rates(nodes: Sequence[tuple[Price, int]]) -> dict[str, float] | None:
    """What a second costs, by currency; None if a price is unknown."""
    rates: dict[str, float] = {}
    for price, count in nodes:
        if price.per_hour is None:
            return None
        rates[price.currency] = rates.get(price.currency, 0.0) + price.per_hour * count / 3600
    return rates


@dataclass(frozen=True)
class Estimate:
    """What a run will need.

    Attributes:
        needs: memory by strategy, at the spec's nodes and devices; unmeasured: why activations, or all, are missing.
        begun_with: which tensors `train.init_from` gives the module; "" without.
    """

    machine: str
    memory_bytes: int
    needs: list[MemoryNeed] = field(default_factory=list)
    unmeasured: str = ""
    begun_with: str = ""
    recommendation: str = ""
    stages: list[StageEstimate] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    verdict: str = ""
    unreadable: int = 0

    @property
    def whole(self) -> Span | None:
        """The time of the run; None if that of a stage is unknown."""
        times = [one.time for one in self.stages if one.time is not None]
        return None if len(times) < len(self.stages) or not times else sum(times[1:], times[0])

    @property
    def amounts(self) -> dict[str, tuple[float, float, float]] | None:
        """The cost by currency: expected, least and most; None if that of a stage is unknown."""
        found: dict[str, Span] = {}
        for one in self.stages:
            if one.time is None or one.rates is None:
                return None
            for currency, rate in one.rates.items():
                found[currency] = found.get(currency, Span(0.0, 0.0, 0.0)) + one.time.times(rate)
        return {currency: (span.expected, span.least, span.most) for currency, span in found.items()}

    def to_json(self) -> dict[str, object]:
        """For a program; what is unknown is null."""
        amounts = self.amounts
        return {
            "memory": {
                "machine": self.machine,
                "device_bytes": self.memory_bytes or None,
                "strategies": [one.to_json() for one in self.needs],
                "recommendation": self.recommendation,
                "unmeasured": self.unmeasured,
            },
            "begun_with": self.begun_with or None,
            "stages": [one.to_json() for one in self.stages],
            "time": None if self.whole is None else self.whole.to_json("run_s"),
            "amounts": None
            if amounts is None
            else {
                currency: dict(zip(("expected", "least", "most"), (round(each, 6) for each in span), strict=True))
                for currency, span in amounts.items()
            },
            "offers": [offer.to_json() for offer in self.offers],
            "cheapest": self.verdict,
            "unreadable_runs": self.unreadable,
        }


def estimate(run: Run, ahead: Sequence[str]) -> Estimate | None:
    """The estimate of the stages that will run; None if all are reused.

    Args:
        ahead: names of the stages that will run, in order.
    """
    if not ahead:
        return None
    train, past = run.spec.train, past_of(run.store, run.spec.name)
    machine = prices.catalogue().get(run.resolved.price.machine, Machine(name=run.resolved.price.place))
    # A training that ignores its machine's devices does not have their memory.
    on_cpu = prices.on_cpu(run.resolved.lightning)
    memory_bytes = 0 if on_cpu else machine.memory_bytes
    if TRAIN not in ahead:
        return Estimate(
            machine.name, memory_bytes, stages=stage_estimates(run, past, ahead, None), unreadable=past.unreadable
        )
    dataset = _dataset(run)
    rows = [
        plan.micro_batch
        for ranks in sorted({train.world_size, *_ranks_of_offers()})
        if (plan := layout_plan(train, ranks)) is not None
    ]
    sizes, unmeasured = measure(run, dataset, rows)
    begun_with = "" if sizes is None else sizes.begun_with
    if run.resolved.init_from is not None and not begun_with:
        begun_with = f"it is unknown which tensors it gives the module: {unmeasured}"
    found = [] if sizes is None else needs(train, sizes, train.nodes, train.devices)
    samples = _samples(run, dataset, past)
    time = training_time(
        past.trainings,
        samples,
        train.world_size,
        run.resolved.price.place,
        _settings(run),
        train.strategy,
        limit_s=most_s(run.resolved.lightning.get("trainer") or {}),
    )
    # Nothing is known of how a training on the CPU would do on accelerators.
    compared = None if on_cpu else sizes
    offered = [] if compared is None else _offers(run, compared, past, samples)
    whole = sizes is not None and bool(sizes.steps)
    said = recommendation(found, memory_bytes, machine.name, whole=whole, on_cpu=on_cpu) if found else ""
    return Estimate(
        machine=machine.name,
        memory_bytes=memory_bytes,
        needs=found,
        unmeasured=unmeasured,
        begun_with=begun_with,
        recommendation=said,
        stages=stage_estimates(run, past, ahead, time),
        offers=shortlist(offered),
        verdict="" if compared is None else verdict(offered),
        unreadable=past.unreadable,
    )


def _settings(run: Run) -> str:
    return settings_of(run.resolved.spec["train"], run.resolved.lightning)


def _ranks_of_offers() -> list[int]:
    devices = {one.devices for one in prices.catalogue().values() if one.devices}
    return [1, *(nodes * each for nodes in NODES for each in devices)]


def _dataset(run: Run) -> Dataset | None:
    """The dataset that the training will read, or the one of the pipeline's last run; None if there is neither."""
    if run.external:
        return None
    try:
        found: Dataset | None = EarlierHandoffs(run).handoff(shard)
        return found
    except UsageError:
        pass
    for resolved in itertools.islice(resolved_runs(run.store, run.spec.name), 1):
        made = recorded(RunInputs(resolved, run.store), "shard")
        if made is not None and made.id is not None:
            return find_dataset_by_id(run.store, made.id)
    return None


def _samples(run: Run, dataset: Dataset | None, past: Past) -> int | None:
    """Samples that the training will consume, by its config and the rows of the dataset or of the last run."""
    train = run.spec.train
    rows = dataset.rows("train") if dataset is not None and not run.resolved.mixture else 0
    rows = rows or next((one.epoch_samples for one in past.trainings if one.epoch_samples), 0)
    return samples_ahead(
        run.resolved.lightning.get("trainer") or {}, rows // train.global_batch_size, train.global_batch_size
    )


def _offers(run: Run, sizes: ModuleSizes, past: Past, samples: int | None) -> list[Offer]:
    """The machines on which the training fits."""
    known, train = prices.catalogue(), run.spec.train
    speeds = {name: one.relative_speed for name, one in known.items() if one.relative_speed}

    def time_s(machine: str, ranks: int) -> float | None:
        spans = {
            name: training_time(past.trainings, samples, ranks, name, _settings(run)).span
            for name in {one.machine for one in past.trainings}
        }
        times = {name: span.expected for name, span in spans.items() if span is not None}
        return time_by_speeds(times, speeds, machine)

    return offers(
        known.values(),
        run.resolved.started[:10],
        lambda devices: dict.fromkeys([(1, 1), *((nodes, devices) for nodes in NODES)]),
        lambda nodes, devices: needs(train, sizes, nodes, devices),
        time_s,
    )
