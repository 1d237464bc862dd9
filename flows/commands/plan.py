"""`plan`: shows what a run would reuse, and what it would need, before anything is booked."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from data_contracts.pipeline_spec import PipelineSpec
from flows.commands.guard import Answer
from flows.commands.terminal import table
from flows.stages import stages
from infra.quantities import BYTES, SECONDS, in_words, size
from tasks.budgets import balances_of_spec
from tasks.costs.sums import JOULES_PER_KWH
from tasks.estimates.earlier_runs import Energy, Span
from tasks.estimates.estimate import Estimate, StageEstimate, estimate
from tasks.estimates.offers import Offer
from tasks.queries.plan import plan as plan_run
from tasks.run.resolve import RunOptions, chosen_code, look_at_past_checkpoints
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec

# For the packed files, and for the files that are left out.
PLAN_LINES = 30


def plan(arguments: argparse.Namespace) -> Answer:
    """The `plan` command."""
    run = open_run(
        read_spec(arguments.spec, arguments.set),
        store_uri=arguments.store,
        options=RunOptions(window=arguments.window, rehash=arguments.rehash),
        recorded=False,
    )
    steps = plan_run(run, stages())
    lines = [step.line for step in steps]
    value: dict[str, object] = {"stages": [vars(step) for step in steps]}
    ahead = [step.name for step in steps if step.action in ("run", "resume")]
    needed = None if arguments.no_estimate else estimate(run, ahead)
    if needed is not None:
        lines += estimate_lines(needed)
        value["estimate"] = needed.to_json()
    spacing = look_at_past_checkpoints(run.spec, run.store)
    if spacing.is_measured or run.resolved.checkpoint is not None:
        lines += ["", f"interval  {spacing.line}"]
    value["checkpoint"] = asdict(spacing)
    budgets = balances_of_spec(run.store, run.spec)
    if budgets:
        lines += ["", *(f"budget    {one.sentence}" for one in budgets)]
        value["budgets"] = [one.to_json() for one in budgets]
    chosen = chosen_code(run.resolved, run.store)
    packed = {name: path.stat().st_size for name, path in sorted(chosen.packed.items())}
    left_out = [asdict(one) for one in chosen.left_out]
    files = "1 file" if len(packed) == 1 else f"{len(packed):,} files"
    lines += ["", f"code      packs {files}, {in_words(sum(packed.values()), BYTES)}"]
    # Of the spec and the files that it is made of, each stage counts the fields that it uses.
    of_spec = {Path(arguments.spec).resolve(), *((run.root / name).resolve() for name in _parts_of(run.spec))}
    uncounted = {name for name in packed.keys() - chosen.counted if chosen.packed[name].resolve() not in of_spec}
    note = ": if your code reads it, name it in code.include, otherwise its changes do not lead to a new training"
    lines += _first(
        [f"  packed    {in_words(size, BYTES):>8}  {name}{note * (name in uncounted)}" for name, size in packed.items()]
    )
    lines += _first([f"  left out  {in_words(one.bytes, BYTES):>8}  {one.path}: {one.why}" for one in chosen.left_out])
    listed = [{"path": name, "bytes": size, "counted": name not in uncounted} for name, size in packed.items()]
    return Answer("\n".join(lines), {**value, "code": {"packed": listed, "left_out": left_out}})


def _parts_of(spec: PipelineSpec) -> list[str]:
    """The files from which a spec takes its Lightning config, its suite and its packages."""
    parts = [spec.train.lightning, spec.contract.suite if spec.contract else None]
    parts += [one.contract.suite for one in spec.evaluate.sets.values() if not isinstance(one.contract, str)]
    later = [spec.contract.features, spec.contract.predictions] if spec.contract else []
    parts += [one.suite for one in later if one is not None]
    if spec.environment is not None:  # what it resolves to is counted
        parts += [f"{spec.environment.file}{name}" for name in ("", "/uv.lock", "/pyproject.toml")]
    return [part for part in parts if isinstance(part, str)]


def _first(lines: list[str]) -> list[str]:
    """The first lines of a list, and a line with the number of further lines in `--json`."""
    more = len(lines) - PLAN_LINES
    return [*lines[:PLAN_LINES], *([f"  … and {more} more (all of them with --json)"] if more > 0 else [])]


def estimate_lines(found: Estimate) -> list[str]:
    """The estimate for a person."""
    begun = ["", f"train.init_from: {found.begun_with}"] if found.begun_with else []
    return [*begun, *_memory(found), *_time(found), *_machines(found)]


def _memory(found: Estimate) -> list[str]:
    if not found.needs and not found.unmeasured:
        return []
    lines = ["", "memory of a device, in tensors"]
    rows = [
        (one.strategy, f"{one.nodes} × {one.devices}", f"{one.micro_batch:,}", size(one.bytes)) for one in found.needs
    ]
    said = table(("strategy", "nodes × devices", "rows at once", "memory"), rows, ("rows at once", "memory"))
    lines += [f"  {line}" for line in said.splitlines()]
    if found.unmeasured:
        what = "activations are not counted" if found.needs else "it is unknown"
        lines.append(f"  {what}: {found.unmeasured.rstrip('.')}")
    return [*lines, *([f"  {found.recommendation}"] if found.recommendation else [])]


def _time(found: Estimate) -> list[str]:
    lines = ["", "time and cost"]
    rows = [(one.stage or "between", *_figures(one), one.why) for one in found.stages]
    said = table(("stage", "time", "range", "cost", "from"), rows, ("time", "cost"))
    lines += [f"  {line}" for line in said.splitlines()]
    if found.whole is None:
        missing = [one.stage for one in found.stages if one.time is None]
        lines.append(f"  The time of the whole run is unknown, because that of {_listed(missing)} is unknown.")
    else:
        ready = "" if found.ready_at is None else f": ready at {_moment(found.ready_at)}"
        whole = f"{in_words(found.whole.expected, SECONDS)}{_in_brackets(_range(found.whole))}"
        lines.append(f"  In all {whole}{ready}. Cost: {_whole_cost(found)}.")
    if found.energy is not None and (found.energy.known or found.energy.unmetered):
        lines.append(f"  {_energy(found.energy)}")
    if found.unreadable:
        runs, records = ("run is", "its") if found.unreadable == 1 else ("runs are", "their")
        lines.append(f"  {found.unreadable} earlier {runs} left out: {records} records are damaged.")
    return lines


def _moment(ready: datetime) -> str:
    return f"{ready:%Y-%m-%d %H:%M} UTC if it starts now"


def _figures(one: StageEstimate) -> tuple[str, str, str]:
    if one.time is None:
        return "unknown", "", "unknown"
    amounts = one.amounts
    cost = "unknown" if amounts is None else " + ".join(_money(value, name) for name, value in sorted(amounts.items()))
    return in_words(one.time.expected, SECONDS), _range(one.time), cost


def _range(span: Span) -> str:
    """The least and the most; "" if nothing tells them apart, as after one run."""
    least, most = (in_words(value, SECONDS) for value in (span.least, span.most))
    return "" if least == most else f"{least} to {most}"


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _whole_cost(found: Estimate) -> str:
    amounts = found.amounts
    if not amounts:
        unpriced = sorted({place for one in found.stages for place in one.unpriced})
        return f"unknown, because no price is known for {_listed(unpriced) or 'its machines'}"
    said = []
    for currency, (expected, least, most) in sorted(amounts.items()):
        first, last = _figure(least), _figure(most)
        said.append(f"{_money(expected, currency)}{'' if first == last else f' ({first} to {last})'}")
    return " + ".join(said)


def _energy(found: Energy) -> str:
    """The energy and the carbon of the run, and what they rest on, as sentences."""
    unmetered, ungraded = _listed(sorted(found.unmetered)), _listed(sorted(found.ungraded))
    if not found.known:
        return f"Energy: unknown, because no earlier run measured it and the price book has no watts for {unmetered}."
    sources = ["measured by earlier runs"] * found.measured + ["by the watts of the price book"] * found.stated
    least = f"at least {_kwh(found.joules)}, without that of {unmetered}" if unmetered else _kwh(found.joules)
    energy = f"Energy: {least}, {_listed(sources)}."
    if not found.grams.expected:
        why = f", because the price book has no carbon intensity for {ungraded}" if ungraded else ""
        return f"{energy} Carbon: {'unknown' if ungraded else '0 g'}{why}."
    partly = "at least " if unmetered or ungraded else ""
    return f"{energy} Carbon: {partly}{_grams(found.grams.expected)} CO2e at the stated intensity of the region."


def _kwh(joules: Span) -> str:
    expected, least, most = (f"{one / JOULES_PER_KWH:.3g}" for one in (joules.expected, joules.least, joules.most))
    return f"{expected} kWh{'' if least == most else f' ({least} to {most} kWh)'}"


def _grams(grams: float) -> str:
    return f"{grams / 1000:.3g} kg" if grams >= 1000 else f"{grams:.3g} g"


def _listed(names: list[str]) -> str:
    """Names as people list them: `a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _figure(amount: float) -> str:
    return f"{amount:,.4f}" if amount < 1 else f"{amount:,.2f}"


def _money(amount: float, currency: str) -> str:
    return f"{_figure(amount)} {currency}"


def _machines(found: Estimate) -> list[str]:
    if not found.verdict:
        return []
    lines = ["", "machines of the price book on which the training fits"]
    head = ("machine", "nodes × devices", "strategy", "memory", "an hour", "training", "cost")
    said = table(head, [_offer(one) for one in found.offers], ("memory", "an hour", "training", "cost"))
    lines += [f"  {line}" for line in said.splitlines()]
    lines.append(f"  {found.verdict}")
    if found.offers and (ready := found.ready_on(found.offers[0])) is not None:
        lines.append(f"  On {found.offers[0].nodes} × {found.offers[0].place} the run is ready at {_moment(ready)}.")
    return [*lines, *([f"  Interruptions of spot nodes: {found.spot_source}."] if found.spot_source else [])]


def _offer(one: Offer) -> tuple[str, ...]:
    time = "unknown" if one.time_s is None else in_words(one.time_s, SECONDS)
    if one.term == "spot" and one.interruptions is not None:
        time += f", {one.interruptions:.2g} interruptions"
    return (
        one.place,
        f"{one.nodes} × {one.devices}",
        one.strategy,
        f"{size(one.per_device_bytes)} of {size(one.memory_bytes)}",
        _money(one.per_hour, one.currency),
        time,
        "unknown" if one.amount is None else _money(one.amount, one.currency),
    )
