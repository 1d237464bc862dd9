"""The pages in the Prefect UI, as Markdown: one small page per stage and one per run, verdict first.

Prefect is also told by events how a run ended. Nothing here decides, and Prefect is not imported. The part about a
contract has each expectation with what was observed, and rows that broke it: these are named by their file and their
number in it, and nothing of a sensitive column is shown. The part about drift has a table of the columns that moved
most, with histograms then and now. Pictures show what the gates found, and the curves of a training.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from data_contracts.contract.reports import Result, results_of
from data_contracts.contract.suites import suite_digest
from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import Checkpoint, ContractReport, Dataset, Evaluation, Failure, Receipt, Suite
from data_contracts.records import ColumnDrift, DriftReport, GateResult, Profile
from data_contracts.run_report import RunReport
from infra.contract.file_statistics import read_profile
from infra.contract.quarantine import FILE as QUARANTINE
from infra.gang.ledger import RankStatus
from infra.mirrors import PREFECT, newest_delivery, newest_end, record_delivery
from infra.models import registry
from infra.orchestrator.artifacts import as_code, as_code_block, as_text
from infra.orchestrator.events import announce_end, announce_verdict
from infra.records.handoffs import newest_handoff
from infra.store.seal import passing_over
from tasks.charts.picture import as_image
from tasks.charts.plots import forest, forest_rows, panels, then_and_now
from tasks.gates.gates import ledger_sentences
from tasks.run.report import cost_sentence
from tasks.run.run import Run, RunInputs
from tasks.stages.shard import row_remarks, rows_left_out, rows_read, split_rows
from tasks.stages.validate import contract_key

log = logging.getLogger("trainwright")

_SEAT = ("rank", "node", "host (address)", "device", "joined", "restarts", "last step", "ended")
_CONTRACT_HEAD = ("Expectation", "Severity", "Result", "Observed")
DRIFT_SHOWN = 10
# The columns of a table of what moved, here and on a terminal.
DRIFT_HEAD = ("column", "verdict", "PSI", "KS", "missing", "what moved")
# A page in the Prefect UI is short.
_MOST_CURVES = 4


def stage_page(run: Run, stage: str, *, handoff: Any = None, error: TrainwrightError | None = None) -> str:
    """The page of one stage, from its hand-off or from the error that ended it."""
    result = run.live.results.get(stage)
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
        data: Markdown lines about its data (tasks/stages/artifacts.py).
        pictures: Markdown lines with pictures of what decided (tasks/stages/artifacts.py).
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


def gang_page(statuses: list[RankStatus]) -> str:
    """The page of a gang: a table of its nodes for each generation, the newest first."""
    lines = ["# gang"]
    for generation in dict.fromkeys(status.generation for status in statuses):
        mine = [status for status in statuses if status.generation == generation]
        lines += ["", f"## generation {generation}", "", "| " + " | ".join(_SEAT) + " |", "|---" * len(_SEAT) + "|"]
        for status in mine:
            host = f"{status.host} ({status.address})" if status.host else "not there"
            cells = (
                "–" if status.rank is None else status.rank,
                status.node,
                host,
                status.device,
                status.joined,
                status.restarts,
                status.last_step,
                status.ended,
            )
            lines.append("| " + " | ".join(as_text(str(cell)) for cell in cells) + " |")
        sentences = dict.fromkeys(f"node {status.node}: {status.sentence}" for status in mine if status.sentence)
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
            notes = [f"- {as_text(remark)}" for remark in row_remarks(run, handoff)]
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
            return _rows("Metric", "Value", rows)
        case Receipt():
            return [*gates_image(run, handoff.gates), "", *_gates(handoff.gates)]
    return []


def _gates(gates: list[GateResult]) -> list[str]:
    return _rows("Gate", "Met", [(gate.sentence, "yes" if gate.met else "no") for gate in gates])


def _rows(left: str, right: str, rows: list[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    return [f"| {left} | {right} |", "|---|---|", *(f"| {as_text(a)} | {as_text(b)} |" for a, b in rows)]


def own_report(run: RunInputs) -> ContractReport | None:
    """The report on a run's own data; None if there is none."""
    key = contract_key(run)
    return None if key is None else newest_handoff(run.store, "contracts", key, ContractReport)


def data_section(run: Run) -> list[str]:
    """The lines about a run's own contract report and the drift; none if there is no report."""
    try:
        report = own_report(run)
        return [] if report is None else ["", "## Data", "", *contract_section(run, report)]
    except TrainwrightError:  # what ended the run is on the page already
        return []
    except Exception as error:  # a page must not end a run that is promoted; the error's text may quote a value
        log.warning("The run's page has no section about its data: %s", type(error).__name__)
        return []


def contract_section(run: Run, report: ContractReport) -> list[str]:
    """Lines of Markdown about a contract report: expectations, rows that broke them, rows set aside, drift."""
    results = report_results(run, report)
    table = [] if results is None else _table(results)
    return [*table, *failure_lines(report.failures), *_set_aside(report), *drift_section(report.drift)]


def report_results(run: Run, report: ContractReport) -> list[Result] | None:
    """Each expectation of a run's report with its result; None if the report is of another suite."""
    suite = _suite(run, report)
    return None if suite is None else results_of(suite, report, _profile(run, report), _sensitive(run))


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Each failure's sentence, and the first rows that broke it."""
    lines = []
    for failure in failures:
        lines.append(f"- **{failure.severity}** {as_text(failure.sentence)}")
        if failure.row_numbers:
            lines.append(f"  - {', '.join(_failure_rows(failure))}")
    return lines


def _failure_rows(failure: Failure) -> list[str]:
    """The first rows that broke an expectation, each with its value."""
    if len(failure.places) == len(failure.row_numbers):
        rows = [f"row {one.row} of {as_code(one.file)}" for one in failure.places]
    else:  # a report of an earlier version
        rows = [f"row {number}" for number in failure.row_numbers]
    return [f"{row}: {as_code(value)}" for row, value in zip(rows, failure.values, strict=False)]


def _suite(run: Run, report: ContractReport) -> Suite | None:
    """The suite that a report is about: that of the data, of the features, of predictions or of an evaluation set."""
    resolved = run.resolved
    suites = [resolved.suite, resolved.features, resolved.predictions, *resolved.set_suites.values()]
    return next((one for one in suites if one is not None and suite_digest(one) == report.suite_digest), None)


def _sensitive(run: Run) -> list[str]:
    return [] if isinstance(run.spec.data, str) else list(run.spec.data.sensitive)


def _profile(run: Run, report: ContractReport) -> Profile | None:
    """The profile of the rows that were checked; None if it has other rows, too, or cannot be read."""
    if report.ref is None or (report.quarantine is not None and report.quarantine.rows):
        return None
    with contextlib.suppress(TrainwrightError), passing_over():
        return read_profile(run.store, report.ref)
    return None


def _table(results: Sequence[Result]) -> list[str]:
    lines = [f"| {' | '.join(_CONTRACT_HEAD)} |", "|---" * len(_CONTRACT_HEAD) + "|"]
    for one in results:
        cells = (one.text, one.entry["severity"], one.verdict, one.observed)
        lines.append(f"| {' | '.join(as_text(cell) for cell in cells)} |")
    return [*lines, ""]


def _set_aside(report: ContractReport) -> list[str]:
    aside = report.quarantine
    if aside is None or report.ref is None or not aside.rows:
        return []
    place = as_code(f"{report.ref.uri}/{QUARANTINE}")
    return ["", f"Set aside: {aside.rows:,} of {report.rows:,} rows, in {place}.", "", *failure_lines(aside.broken)]


def drift_cells(drift: ColumnDrift) -> tuple[str, ...]:
    """A column's row in a table with this head."""
    missing = f"{drift.nulls[0]:.1%} → {drift.nulls[1]:.1%}" if any(drift.nulls) else ""
    return drift.column, drift.verdict, f"{drift.psi:.3f}", f"{drift.ks:.3f}", missing, drift.what


def drift_section(report: DriftReport | None) -> list[str]:
    """Lines of Markdown; none without a comparison."""
    if report is None:
        return []
    head = as_text(report.head[0].upper() + report.head[1:])
    lines = ["", "## Drift", ""]
    if report.note or not report.moved:
        return [*lines, f"{head}."]
    then, now = report.rows
    titles = [*(name[0].upper() + name[1:] for name in DRIFT_HEAD), "then and now"]
    lines += [f"{head}: {then:,} rows then (grey), {now:,} now (orange).", ""]
    lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [_drift_row(one) for one in report.moved[:DRIFT_SHOWN]]
    more = len(report.moved) - DRIFT_SHOWN
    return [*lines, *(["", f"… and {more} more, in the report."] if more > 0 else [])]


def _drift_row(drift: ColumnDrift) -> str:
    picture = as_image(then_and_now(drift.bars, drift.column), "histogram") if drift.bars else ""
    return f"| {' | '.join(map(as_text, drift_cells(drift)))} | {picture} |"


def receipt_of(run: RunInputs, report: RunReport) -> Receipt | None:
    """The receipt of the run's own promotion; None if it promoted nothing, or its receipt is gone."""
    if report.verdict != "promoted":
        return None
    found = registry.read_alias(run.store, run.spec.model_name, run.spec.promote.alias)
    if found is None:
        return None
    return registry.receipt_of_run(run.store, found[0], run.run_id, run.resolved.started)


def gates_in(report: RunReport, receipt: Receipt | None) -> list[GateResult]:
    """What the gates found: from the receipt, or from the error that refused the candidate."""
    if receipt is not None and receipt.gates:
        return list(receipt.gates)
    found = (report.error or {}).get("details", {}).get("gates") or []
    return [GateResult.model_validate(one) for one in found]


def gates_image(run: Run, gates: Sequence[GateResult]) -> list[str]:
    """Lines of Markdown with the forest plot of the gates, and what their rows can still decide; none without gates."""
    drawn = _lines(lambda: [("gates", forest(forest_rows(gates, run.spec)))] if gates else [])
    return [*drawn, *(line for sentence in ledger_sentences(gates) for line in ("", as_text(sentence)))]


def run_image(run: Run, report: RunReport) -> list[str]:
    """Lines of Markdown as `gates_image` gives them, of a run that has ended."""
    try:
        return gates_image(run, gates_in(report, receipt_of(run, report)))
    except Exception as error:  # as in _lines
        log.warning("A page in the Prefect UI has no picture: %s.", type(error).__name__)
        return []


def curves_image(run: Run, checkpoint: Checkpoint) -> list[str]:
    """Lines of Markdown with the curves of the training that handed the checkpoint over."""

    def drawn() -> list[tuple[str, str]]:
        history = run.store.read_sealed_as(run.store.manifest(checkpoint.ref), "history.json", list)
        return [("curves", picture) for _, picture in panels(history)[:_MOST_CURVES]]

    return _lines(drawn)


def _lines(draw: Callable[[], list[tuple[str, str]]]) -> list[str]:
    """The pictures that `draw` makes; none if it fails, because a picture must not end a run."""
    try:
        return [line for name, picture in draw() if picture for line in ("", as_image(picture, name))]
    except Exception as error:  # the text may quote a value
        log.warning("A page in the Prefect UI has no picture: %s.", type(error).__name__)
        return []


def announce(report: RunReport, flow_run: str | None = None) -> bool:
    """Emit the events of a run's end; returns whether the server took all of them.

    Args:
        flow_run: whose page the events name; default: the one that is carried out here.
    """
    both = [announce_verdict(report), announce_end(report, flow_run)]
    return all(both)


def note_untold(run: Run) -> None:
    """Record that Prefect was not told of a run's end: the next run's end, or a reaper, tells it."""
    try:
        if run.recorded and (what := newest_end(run.store, run.run_id)) is not None:
            attempts, _ = newest_delivery(run.store, run.run_id, PREFECT, what)
            record_delivery(
                run.store, run.run_id, PREFECT, what, attempts, delivered=False, sentence="the server was away"
            )
    except TrainwrightError as error:
        log.warning("Prefect is never told how %s ended: %s", run.run_id, error)
