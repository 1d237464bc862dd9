"""The pages in the Prefect UI: one small Markdown page per stage and one per run, verdict first."""

from __future__ import annotations

from typing import Any

from data_contracts.drift_report import DriftReport
from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import Checkpoint, ContractReport, Dataset, Evaluation, Failure, GateResult, Receipt
from data_contracts.run_report import RunReport
from infra.gang.checkpoints.participants import Seat
from infra.orchestrator.artifacts import as_code, as_code_block, as_text
from infra.quarantine import FILE as QUARANTINE
from tasks.run.report import cost_sentence
from tasks.run.run import Run, slug
from tasks.stages.drift_pages import drift_section
from tasks.stages.shard import in_order

_SEAT = ("rank", "node", "host (address)", "device", "joined", "restarts", "last step", "ended")


def artifact_key(run: Run, stage: str) -> str:
    """The Prefect artifact key of a stage: `<pipeline>-<stage>`, where `_` and `.` become `-`."""
    return f"{slug(run.spec.name)}-{stage}"


def stage_page(run: Run, stage: str, *, handoff: Any = None, error: TrainwrightError | None = None) -> str:
    """The page of one stage, from its hand-off or from the error that ended it."""
    result = run.results.get(stage)
    status = result.status if result else "failed"
    sentence = error.message if error else (result.sentence if result else "")
    lines = [f"# {stage}: {status}", "", as_text(sentence)]
    if error is not None:
        lines += ["", as_text(error.remedy)]
        if error.details.get("failures"):
            lines += ["", *_failures([Failure.model_validate(one) for one in error.details["failures"]])]
        if error.details.get("gates"):
            lines += ["", *_gates([GateResult.model_validate(one) for one in error.details["gates"]])]
        if error.details.get("drift"):
            lines += drift_section(DriftReport.model_validate(error.details["drift"]))
        if error.user_traceback:
            lines += ["", as_code_block(error.user_traceback)]
    lines += ["", *_facts(handoff)]
    reused = f" Reused from {as_code(result.reused_from)}." if result and result.reused_from else ""
    seconds = f"{result.seconds:.1f} s" if result else ""
    return "\n".join([*lines, "", f"Run {as_code(run.run_id)}, {seconds}.{reused}"])


def run_page(report: RunReport) -> str:
    """The page of a run."""
    stages = [(stage.name, f"{stage.status}, {stage.seconds:.1f} s: {stage.sentence}") for stage in report.stages]
    metrics = [(name, f"{value:.4f}") for name, value in report.metrics.items()]
    return "\n".join(
        [
            f"# {report.verdict}",
            "",
            as_text(report.sentence),
            "",
            *_rows("Stage", "How it ended", stages),
            "",
            *(_rows("Metric", "Value", metrics) if metrics else []),
            "",
            f"Cost: {as_text(cost_sentence(report.cost))}.",
            "",
            f"Run {as_code(report.run_id)} of {as_code(report.pipeline)}, "
            f"by {as_text(report.actor)} ({as_text(report.trigger)}).",
        ]
    )


def gang_page(seats: list[Seat]) -> str:
    """The page of a gang: a table of its nodes for each generation, the newest first."""
    lines = ["# gang"]
    for generation in dict.fromkeys(seat.generation for seat in seats):
        mine = [seat for seat in seats if seat.generation == generation]
        lines += ["", f"## generation {generation}", "", "| " + " | ".join(_SEAT) + " |", "|---" * len(_SEAT) + "|"]
        for seat in mine:
            host = f"{seat.host} ({seat.address})" if seat.host else "not there"
            cells = (
                "–" if seat.rank is None else seat.rank,
                seat.node,
                host,
                seat.device,
                seat.joined,
                seat.restarts,
                seat.last_step,
                seat.ended,
            )
            lines.append("| " + " | ".join(as_text(str(cell)) for cell in cells) + " |")
        sentences = dict.fromkeys(f"node {seat.node}: {seat.sentence}" for seat in mine if seat.sentence)
        lines += ["", *(f"- {as_text(sentence)}" for sentence in sentences)] if sentences else []
    return "\n".join(lines)


def _facts(handoff: Any) -> list[str]:
    match handoff:
        case ContractReport():
            return [*_failures(handoff.failures), *_set_aside(handoff), *drift_section(handoff.drift)]
        case Dataset():
            splits = handoff.splits
            rows = [(name, f"{handoff.rows(name):,} rows in {len(splits[name])} shards") for name in in_order(handoff)]
            return [*_rows("Split", "Rows", rows), "", f"Dataset {as_code(handoff.ref.id)}."]
        case Checkpoint():
            metrics = [(name, f"{value:.4g}") for name, value in handoff.metrics.items()]
            return [
                *_rows("Logged", "Last value", metrics),
                "",
                f"Checkpoint {as_code(handoff.ref.id)}, {handoff.state}.",
            ]
        case Evaluation():
            rows = [(name, f"{m.value:.4f} over {m.rows:,} rows (per {m.unit})") for name, m in handoff.metrics.items()]
            return _rows("Metric", "Value", rows)
        case Receipt():
            return _gates(handoff.gates)
    return []


def _gates(gates: list[GateResult]) -> list[str]:
    return _rows("Gate", "Met", [(gate.sentence, "yes" if gate.met else "no") for gate in gates])


def _failures(failures: list[Failure]) -> list[str]:
    lines = []
    for failure in failures:
        lines.append(f"- **{failure.severity}** {as_text(failure.sentence)}")
        if failure.row_numbers:
            examples = zip(failure.row_numbers, failure.values, strict=False)
            shown = ", ".join(f"row {row}: {as_code(value)}" for row, value in examples)
            lines.append(f"  - {shown}")
    return lines


def _set_aside(report: ContractReport) -> list[str]:
    aside = report.quarantine
    if aside is None or report.ref is None or not aside.rows:
        return []
    place = as_code(f"{report.ref.uri}/{QUARANTINE}")
    return ["", f"Set aside: {aside.rows:,} of {report.rows:,} rows, in {place}.", "", *_failures(aside.broken)]


def _rows(left: str, right: str, rows: list[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    return [f"| {left} | {right} |", "|---|---|", *(f"| {as_text(a)} | {as_text(b)} |" for a, b in rows)]
