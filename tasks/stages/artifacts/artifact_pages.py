"""The pages in the Prefect UI: one small Markdown page per stage and one per run, verdict first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import Checkpoint, ContractReport, Dataset, Evaluation, Failure, Receipt
from data_contracts.records import GateResult
from data_contracts.run_report import RunReport
from infra.gang.ledger import Seat
from infra.orchestrator.artifacts import as_code, as_code_block, as_text
from tasks.run.report import cost_sentence
from tasks.run.run import Run
from tasks.stages.artifacts.contract_pages import contract_section, failure_lines
from tasks.stages.artifacts.gate_pages import curves_image, gates_image
from tasks.stages.artifacts.suspect_labels import suspect_lines
from tasks.stages.row_counts import remarks, rows_left_out, rows_read, split_rows

_SEAT = ("rank", "node", "host (address)", "device", "joined", "restarts", "last step", "ended")


def stage_page(run: Run, stage: str, *, handoff: Any = None, error: TrainwrightError | None = None) -> str:
    """The page of one stage, from its hand-off or from the error that ended it."""
    result = run.results.get(stage)
    status = result.status if result else "failed"
    sentence = error.message if error else (result.sentence if result else "")
    lines = [f"# {stage}: {status}", "", as_text(sentence)]
    if error is not None:
        lines += ["", as_text(error.remedy)]
        lines += _of_rejection(run, error)
        if error.user_traceback:
            lines += ["", as_code_block(error.user_traceback)]
    lines += ["", *_facts(run, handoff)]
    reused = f" Reused from {as_code(result.reused_from)}." if result and result.reused_from else ""
    seconds = f"{result.seconds:.1f} s" if result else ""
    return "\n".join([*lines, "", f"Run {as_code(run.run_id)}, {seconds}.{reused}"])


def _of_rejection(run: Run, error: TrainwrightError) -> list[str]:
    """The part of the page from an error's details: a contract report, failures alone, or gates."""
    details, lines = error.details, []
    if "suite_digest" in details and "failures" in details:
        lines += ["", *contract_section(run, ContractReport.model_validate(details))]
    elif details.get("failures"):
        lines += ["", *failure_lines([Failure.model_validate(one) for one in details["failures"]])]
    if details.get("gates"):
        gates = [GateResult.model_validate(one) for one in details["gates"]]
        lines += [*gates_image(run, gates), "", *_gates(gates)]
    return lines


def run_page(report: RunReport, data: Sequence[str] = (), pictures: Sequence[str] = ()) -> str:
    """The page of a run.

    Args:
        data: Markdown lines about its data (tasks/stages/artifacts/contract_pages.py).
        pictures: Markdown lines with pictures of what decided (tasks/stages/artifacts/gate_pages.py).
    """
    stages = [(stage.name, f"{stage.status}, {stage.seconds:.1f} s: {stage.sentence}") for stage in report.stages]
    metrics = [(name, f"{value:.4f}") for name, value in report.metrics.items()]
    return "\n".join(
        [
            f"# {report.verdict}",
            "",
            as_text(report.sentence),
            *pictures,
            "",
            *_rows("Stage", "How it ended", stages),
            "",
            *(_rows("Metric", "Value", metrics) if metrics else []),
            "",
            f"Cost: {as_text(cost_sentence(report.cost))}.",
            *(line for sentence in report.budgets for line in ("", as_text(sentence))),
            *data,
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


def _facts(run: Run, handoff: Any) -> list[str]:
    match handoff:
        case ContractReport():
            return contract_section(run, handoff)
        case Dataset():
            shards, read = handoff.splits, rows_read(run, handoff)
            rows = [(name, f"{text} in {len(shards[name])} shards") for name, text in split_rows(run, handoff).items()]
            rows += [(why, f"{count:,}") for why, count in rows_left_out(run, handoff).items()]
            rows += [("in the files", f"{read:,}")] if read is not None else []
            notes = [f"- {as_text(remark)}" for remark in remarks(run, handoff)]
            return [*_rows("Split", "Rows", rows), "", *notes, "", f"Dataset {as_code(handoff.ref.id)}."]
        case Checkpoint():
            metrics = [(name, f"{value:.4g}") for name, value in handoff.metrics.items()]
            return [
                *_rows("Logged", "Last value", metrics),
                "",
                f"Checkpoint {as_code(handoff.ref.id)}, {handoff.state}.",
                *curves_image(run, handoff),
            ]
        case Evaluation():
            rows = [(name, f"{m.value:.4f} over {m.rows:,} rows (per {m.unit})") for name, m in handoff.metrics.items()]
            rows += [(name, f"nan: {reason}") for name, reason in handoff.undefined.items()]
            return [*_rows("Metric", "Value", rows), *suspect_lines(run, handoff)]
        case Receipt():
            return [*gates_image(run, handoff.gates), "", *_gates(handoff.gates)]
    return []


def _gates(gates: list[GateResult]) -> list[str]:
    return _rows("Gate", "Met", [(gate.sentence, "yes" if gate.met else "no") for gate in gates])


def _rows(left: str, right: str, rows: list[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    return [f"| {left} | {right} |", "|---|---|", *(f"| {as_text(a)} | {as_text(b)} |" for a, b in rows)]
