"""report: one page about one run, with its verdict first; and, before it, what the conductor of a training reports,
passed on to the log and to listeners.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from data_contracts.errors import OnHold, StorageUnavailable, TrainwrightError
from data_contracts.executions import GangUsage
from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, Receipt
from data_contracts.messages.gang import Launch
from data_contracts.run_report import Cost, ModelName, RunReport, Verdict
from infra.audit import now
from infra.gang.ledger import generation_records, roster
from infra.gang.members import Progress
from infra.models import registry
from infra.orchestrator.events import announce_restart
from infra.store import Store, layout
from infra.usage import cost, total
from tasks.run.progress import IN_VIEW, GangChanged, GangLaunched, TrainingMeter, notify, on_page, planned_samples
from tasks.run.run import Run, artifact_key

log = logging.getLogger("trainwright")

FINAL: tuple[Verdict, ...] = ("promoted", "canary", "unchanged", "trained", "not_promoted", "rejected")
VERDICTS: dict[int, Verdict] = {3: "rejected", 4: "not_promoted", 7: "over_budget", 9: "waiting", 130: "cancelled"}
# Between two log lines of a training that has nothing new to say.
QUIET_S = 2.0


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
    elif receipt is None:
        assert checkpoint is not None, "the line ends with a receipt, or with a checkpoint (`until`)"
        logged = "".join(f", {name} {value:.4g}" for name, value in sorted(checkpoint.metrics.items()))
        verdict, sentence = "trained", f"step {checkpoint.step:,} of {checkpoint.training}{logged}"
    else:
        assert receipt.decision != "ended"
        verdict, sentence = receipt.decision, receipt.sentence
    told = run.resolved
    page = RunReport(
        run_id=run.run_id,
        pipeline=run.spec.name,
        verdict=verdict,
        exit_code=error.exit_code if error else 0,
        sentence=sentence,
        stages=list(run.live.results.values()),
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
        budgets=[] if run.live.budget is None else [*run.live.budget.sentences],
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
    return total([*run.live.spent, *([before.cost] if before else [])], run.resolved.price)


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


def notify_of_gang(run: Run, training: str) -> None:
    """Tell listeners which nodes take part in a training; does nothing while the store is unavailable."""
    with contextlib.suppress(StorageUnavailable):
        notify(GangChanged(roster(generation_records(run.store, training))))


def samples_to_come(run: Run, dataset: Dataset | None) -> int | None:
    """Samples that the whole training consumes; None where the spec does not say."""
    lightning = run.resolved.lightning
    # With a mixture, and with the user's own data module, the loader decides how long an epoch is.
    ours = dataset is not None and not run.resolved.mixture and not lightning.get("data")
    rows = dataset.rows("train") if dataset is not None and ours else None
    return planned_samples(lightning.get("trainer") or {}, rows, run.spec.train.global_batch_size)


class TrainingReporter:
    """Logs progress when there is something new (a checkpoint, an epoch, a sentence), at most every few seconds.

    The end of a generation that another follows is a warning: its sentence has the cause, and what follows.

    Listeners get each report, and the list of nodes when a generation has met and when it ended.
    """

    def __init__(self, run: Run, training: str, dataset: Dataset | None) -> None:
        self._run, self._training = run, training
        self._before = total_cost(run)
        self._meter = TrainingMeter(samples_to_come(run, dataset), self._cost)
        self._said: tuple[int, int, str] | None = None
        self._at = 0.0
        self._gang: tuple[int, str] | None = None
        self._page = on_page(artifact_key(run, "gang"))
        self._checkpoint, self._checkpoint_at = -1, 0.0

    def launched(self, launch: Launch, usage: Callable[[], GangUsage]) -> None:
        """Log that a generation is launched, and tell listeners."""
        nodes = "1 node" if launch.nodes == 1 else f"{launch.nodes} nodes"
        at = 0 if launch.resume is None else launch.resume.step
        log.info(
            "  train: generation %d is launched on %s from step %s",
            launch.generation,
            nodes,
            f"{at:,}",
            extra={**IN_VIEW, **self._page},
        )
        notify(GangLaunched(launch, usage))

    def __call__(self, progress: Progress) -> None:
        """Pass one report on."""
        notify(self._meter.take(progress))
        gang = (progress.generation, progress.phase)
        if progress.phase in ("training", "ended") and gang != self._gang:
            self._gang = gang
            notify_of_gang(self._run, self._training)
        if progress.cause and progress.generation >= 0:
            self._announce_restart(progress)
        now = time.monotonic()
        self._log_checkpoint(progress.checkpoint_step, now)
        said = (progress.generation, progress.epoch, progress.sentence)
        if said == self._said or (not progress.sentence and now - self._at < QUIET_S):
            return
        self._said, self._at = said, now
        if progress.sentence:
            level = logging.WARNING if progress.phase == "ended" else logging.INFO
            log.log(level, "  train: %s", progress.sentence, extra=self._page)
        elif progress.phase == "training":
            metrics = "".join(f"  {name} {value:.4g}" for name, value in sorted(progress.metrics.items()))
            log.info("  train: epoch %d, step %d%s", progress.epoch, progress.step, metrics, extra=IN_VIEW)

    def _announce_restart(self, progress: Progress) -> None:
        """Tell Prefect, for those whom `notify` names."""
        pipeline, run_id = self._run.spec.name, self._run.run_id
        announce_restart(pipeline, run_id, self._training, progress.generation, progress.cause)

    def _log_checkpoint(self, step: int, now: float) -> None:
        if step in (-1, self._checkpoint) or now - self._checkpoint_at < QUIET_S:
            return
        self._checkpoint, self._checkpoint_at = step, now
        log.info("  train: the checkpoint of step %s is committed", f"{step:,}", extra={**IN_VIEW, **self._page})

    def _cost(self, node_seconds: float) -> Cost:
        """The run's cost if this training used `node_seconds`."""
        price = self._run.resolved.price
        return total([self._before, cost(node_seconds, price)], price)
