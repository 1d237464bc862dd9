"""report: one page about one run, with its verdict first."""

from __future__ import annotations

from data_contracts.errors import OnHold, TrainwrightError
from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, Receipt
from data_contracts.run_report import Cost, ModelName, RunReport, Verdict
from infra.audit import now
from infra.models import registry
from infra.store import Store, layout
from infra.usage import total
from tasks.run.run import Run

FINAL: tuple[Verdict, ...] = ("promoted", "canary", "unchanged", "not_promoted", "rejected")
VERDICTS: dict[int, Verdict] = {3: "rejected", 4: "not_promoted", 7: "over_budget", 9: "waiting", 130: "cancelled"}


def report(
    run: Run,
    *,
    dataset: Dataset | None = None,
    checkpoint: Checkpoint | None = None,
    evaluation: Evaluation | None = None,
    receipt: Receipt | None = None,
    error: TrainwrightError | None = None,
) -> RunReport:
    """Make the run's report and keep it: as `report.json` with a final verdict, as an attempt if the run may continue.

    Returns:
        The valid report; if two processes end one run, both return the first process's.
    """
    if error is not None:
        verdict: Verdict = VERDICTS.get(error.exit_code, "failed")
        sentence = str(error)
    else:
        assert receipt is not None
        assert receipt.decision != "ended"
        verdict, sentence = receipt.decision, receipt.sentence
    told = run.resolved
    page = RunReport(
        run_id=run.run_id,
        pipeline=run.spec.name,
        verdict=verdict,
        exit_code=error.exit_code if error else 0,
        sentence=sentence,
        stages=list(run.results.values()),
        error=error.to_json() if error else None,
        dataset_id=dataset.ref.id if dataset else None,
        checkpoint_id=checkpoint.ref.id if checkpoint else None,
        model=_model(run, receipt),
        metrics={name: metric.value for name, metric in evaluation.metrics.items()} if evaluation else {},
        cost=total_cost(run),
        tags=run.spec.tags,
        trigger=told.trigger,
        actor=told.actor,
        commit=told.commit,
        dirty=told.dirty,
        started=told.started,
        finished=now(),
        budgets=[sentence for one in run.budgets for sentence in one.sentences],
    )
    # A person may release the checkpoint; then the same run continues.
    final = verdict in FINAL and not isinstance(error, OnHold)
    return _keep(run, page, final) if run.recorded else page


def cost_sentence(cost: Cost) -> str:
    """A run's cost and its calculation, such as `0.0005 USD = 24 node-seconds × 0.0816 USD/h (…)`."""
    seconds = f"{cost.node_seconds:.0f} node-seconds"
    if cost.usd is None and not cost.amounts:
        return f"unknown: {seconds} on {cost.machine}, whose price is unknown"
    if cost.usd is None or cost.usd_per_hour is None:
        rest = f", of which {cost.unpriced_s:.0f} have no known price" if cost.unpriced_s else ""
        return f"{cost.money} for {seconds} on {cost.machine}{rest}"
    price = f"{cost.usd_per_hour:g} USD/h ({cost.machine}, price of {cost.price_date})"
    # Nodes of other sections may have other prices.
    equals = "=" if abs(cost.usd - cost.node_seconds / 3600 * cost.usd_per_hour) < 1e-5 else "in all for"
    return f"{cost.money} {equals} {seconds} {'×' if equals == '=' else 'at'} {price}"


def finished_report(run: Run) -> RunReport | None:
    """The run's report if it has a final verdict."""
    return run.store.find_as(layout.report(run.run_id), RunReport.from_json)


def num_attempts(run: Run) -> int:
    """How often the run has ended without a final verdict."""
    return len(run.store.list(layout.run_attempts(run.run_id)))


def latest_report(store: Store, run_id: str) -> RunReport | None:
    """The run's report, or its newest attempt's if it has no final verdict yet."""
    final = store.find_as(layout.report(run_id), RunReport.from_json)
    if final is not None:
        return final
    attempts = len(store.list(layout.run_attempts(run_id)))
    if not attempts:
        return None
    return store.read_as(layout.run_attempt(run_id, attempts - 1), RunReport.from_json)


def _keep(run: Run, page: RunReport, final: bool) -> RunReport:
    if final:
        path = layout.report(run.run_id)
        return page if run.store.create_once(path, page.to_json()) else run.store.read_as(path, RunReport.from_json)
    attempt = num_attempts(run)
    while not run.store.create_once(layout.run_attempt(run.run_id, attempt), page.to_json()):
        attempt += 1
    return page


def total_cost(run: Run) -> Cost:
    """The run's cost so far, including earlier attempts: each report holds the sum up to its own end."""
    before = latest_report(run.store, run.run_id) if run.recorded else None
    return total([*run.spent, *([before.cost] if before else [])], run.resolved.price)


def _model(run: Run, receipt: Receipt | None) -> ModelName | None:
    """The model as the registry has it now: the alias if it names a version."""
    if receipt is not None:
        return ModelName(name=receipt.model, version=receipt.version, alias=receipt.alias)
    try:
        found = registry.read_alias(run.store, run.spec.model_name, run.spec.promote.alias)
    except TrainwrightError:
        return None
    alias = run.spec.promote.alias if found else None
    return ModelName(name=run.spec.model_name, version=found[1] if found else None, alias=alias)
