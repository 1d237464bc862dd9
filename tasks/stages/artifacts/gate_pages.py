"""Pictures on the pages in the Prefect UI: what the gates found, and the curves of a training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from data_contracts.alias_moves import ALIAS
from data_contracts.handoffs import Checkpoint, Receipt
from data_contracts.records import GateResult
from data_contracts.run_report import RunReport
from infra.models import registry
from infra.orchestrator.artifacts import as_text
from tasks.charts.forest import forest
from tasks.charts.gate_rows import forest_rows
from tasks.charts.history_panels import panels
from tasks.charts.picture import as_image as picture_as_image
from tasks.run.run import Run
from tasks.stages.gates.gates import ledger_sentences

log = logging.getLogger("trainwright")
# A page in the Prefect UI is short.
_MOST_CURVES = 4


def receipt_of(run: Run, report: RunReport) -> Receipt | None:
    """The receipt of the run's own promotion; None if it promoted nothing, or its receipt is gone."""
    if report.verdict not in ("promoted", "canary"):
        return None
    alias = run.spec.promote.alias if report.verdict == "promoted" else ALIAS
    found = registry.read_alias(run.store, run.spec.model_name, alias)
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
        return [line for name, picture in draw() if picture for line in ("", picture_as_image(picture, name))]
    except Exception as error:  # the text may quote a value
        log.warning("A page in the Prefect UI has no picture: %s.", type(error).__name__)
        return []
