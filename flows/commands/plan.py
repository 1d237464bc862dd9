"""`plan`: shows what a run would reuse, and what it would need, before anything is booked."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from humanize import natural_list

from data_contracts.pipeline_spec import PipelineSpec, SearchSpec
from flows.commands.guard import Answer
from flows.commands.terminal import table
from flows.stages import stages
from infra.quantities import BYTES, SECONDS, in_words, size
from tasks.budgets import balances_of_spec
from tasks.estimates.earlier_runs import Span
from tasks.estimates.estimate import Estimate, StageEstimate, estimate
from tasks.estimates.offers import Offer, figure, money
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
    if run.spec.search is not None:
        lines += ["", f"search    {search_line(run.spec.search, needed)}"]
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
        parts.append(spec.environment.file)
    return [part for part in parts if isinstance(part, str)]


def _first(lines: list[str]) -> list[str]:
    """The first lines of a list, and a line with the number of further lines in `--json`."""
    more = len(lines) - PLAN_LINES
    return [*lines[:PLAN_LINES], *([f"  … and {more} more (all of them with --json)"] if more > 0 else [])]


def estimate_lines(estimate: Estimate) -> list[str]:
    """The estimate for a person."""
    begun = ["", f"train.init_from: {estimate.begun_with}"] if estimate.begun_with else []
    return [*begun, *_memory(estimate), *_time(estimate), *_machines(estimate)]


def search_line(search: SearchSpec, estimate: Estimate | None) -> str:
    """What a search may use at most, and what a trial takes, if that is known."""
    most = search.budget
    limits = [f"{most.hours:g} node-hours"] if most.hours is not None else []
    limits += [money(most.amount, most.currency or "")] if most.amount is not None else []
    words = f"at most {most.trials} trials, {search.parallel} at the same time"
    words += f", and {natural_list(limits)}" if limits else ", without a limit of hours or money"
    training = next((one for one in estimate.stages if one.stage == "train"), None) if estimate is not None else None
    if training is None or training.time is None:
        return f"{words}; what a training takes is unknown, or it is reused"
    time, _, cost = _figures(training)
    return f"{words}; a training takes about {time}, its cost is {cost}"


def _memory(estimate: Estimate) -> list[str]:
    if not estimate.needs and not estimate.unmeasured:
        return []
    lines = ["", "memory of a device, in tensors"]
    rows = [
        (need.strategy, f"{need.nodes} × {need.devices}", f"{need.micro_batch:,}", size(need.bytes))
        for need in estimate.needs
    ]
    text = table(("strategy", "nodes × devices", "rows at once", "memory"), rows, ("rows at once", "memory"))
    lines += [f"  {line}" for line in text.splitlines()]
    if estimate.unmeasured:
        what = "activations are not counted" if estimate.needs else "it is unknown"
        lines.append(f"  {what}: {estimate.unmeasured.rstrip('.')}")
    return [*lines, *([f"  {estimate.recommendation}"] if estimate.recommendation else [])]


def _time(estimate: Estimate) -> list[str]:
    lines = ["", "time and cost"]
    rows = [(stage.stage or "between", *_figures(stage), stage.why) for stage in estimate.stages]
    text = table(("stage", "time", "range", "cost", "from"), rows, ("time", "cost"))
    lines += [f"  {line}" for line in text.splitlines()]
    if estimate.whole is None:
        missing = [stage.stage for stage in estimate.stages if stage.time is None]
        lines.append(f"  The time of the whole run is unknown, because that of {natural_list(missing)} is unknown.")
    else:
        span = _range(estimate.whole)
        whole = f"{in_words(estimate.whole.expected, SECONDS)}{f' ({span})' if span else ''}"
        lines.append(f"  In all {whole}. Cost: {_whole_cost(estimate)}.")
    if estimate.unreadable:
        runs, records = ("run is", "its") if estimate.unreadable == 1 else ("runs are", "their")
        lines.append(f"  {estimate.unreadable} earlier {runs} left out: {records} records are damaged.")
    return lines


def _figures(stage: StageEstimate) -> tuple[str, str, str]:
    if stage.time is None:
        return "unknown", "", "unknown"
    amounts = stage.amounts
    cost = "unknown" if amounts is None else " + ".join(money(value, name) for name, value in sorted(amounts.items()))
    return in_words(stage.time.expected, SECONDS), _range(stage.time), cost


def _range(span: Span) -> str:
    """The least and the most; "" if nothing tells them apart, as after one run."""
    least, most = (in_words(value, SECONDS) for value in (span.least, span.most))
    return "" if least == most else f"{least} to {most}"


def _whole_cost(estimate: Estimate) -> str:
    amounts = estimate.amounts
    if not amounts:
        unpriced = sorted({place for stage in estimate.stages for place in stage.unpriced})
        return f"unknown, because no price is known for {natural_list(unpriced) or 'its machines'}"
    costs = []
    for currency, (expected, least, most) in sorted(amounts.items()):
        first, last = figure(least), figure(most)
        costs.append(f"{money(expected, currency)}{'' if first == last else f' ({first} to {last})'}")
    return " + ".join(costs)


def _machines(estimate: Estimate) -> list[str]:
    if not estimate.verdict:
        return []
    lines = ["", "machines of the price book on which the training fits"]
    head = ("machine", "nodes × devices", "strategy", "memory", "an hour", "training", "cost")
    text = table(head, [_offer(offer) for offer in estimate.offers], ("memory", "an hour", "training", "cost"))
    lines += [f"  {line}" for line in text.splitlines()]
    lines.append(f"  {estimate.verdict}")
    if any(offer.term == "spot" for offer in estimate.offers):
        lines.append("  The times on spot nodes are those without interruptions.")
    return lines


def _offer(offer: Offer) -> tuple[str, ...]:
    time = "unknown" if offer.time_s is None else in_words(offer.time_s, SECONDS)
    return (
        offer.place,
        f"{offer.nodes} × {offer.devices}",
        offer.strategy,
        f"{size(offer.per_device_bytes)} of {size(offer.memory_bytes)}",
        money(offer.per_hour, offer.currency),
        time,
        "unknown" if offer.amount is None else money(offer.amount, offer.currency),
    )
