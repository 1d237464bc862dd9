"""The whole line: from raw data to a promoted model. Read from top to bottom, it is the table of contents."""

from __future__ import annotations

import functools
from typing import Any

from prefect import flow
from prefect.states import State

from data_contracts.errors import TrainwrightError
from data_contracts.run_report import RunReport
from flows.features import call, wrapped
from flows.flow_runs import (
    as_error,
    concurrency_lock,
    cost_tagged,
    crash_in,
    end_of,
    flow_name,
    name_flow_run,
    started_by,
    take_spec,
    with_lock,
    work_with_lock,
)
from flows.stages import stages
from infra.orchestrator.flow_runs import begin_flow_run_logs, cancellable
from infra.orchestrator.worker import give_to_worker_again
from infra.stopping import HandedOver
from tasks.budgets import admit, refuse_over, within_budgets
from tasks.run.executions import attach
from tasks.run.meter import metered
from tasks.run.report import report
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run, reopen_run
from tasks.stages.approval import refuse_early
from tasks.stages.orchestrated import as_task

# The parts of the report, by the stage that hands them off.
REPORTED = {"dataset": "shard", "checkpoint": "verify", "evaluation": "evaluate", "receipt": "promote"}


@flow(name="retrain", flow_run_name=flow_name)
def retrain(
    spec: str,
    window: str | None = None,
    set: str = "",
    key: str | None = None,
    store: str | None = None,
    new: bool = False,
    rehash: bool = False,
) -> State:
    """Validate, shard, train, verify, evaluate and promote by a pipeline spec.

    Args:
        spec: path of the spec, from the working directory.
        window: `START..END`, or a length such as `7d` that ends at the scheduled time.
        set: overrides, separated by spaces, such as `train.seed=1 tags.team=vision`.
        key: idempotency key; two runs with one key are one run.
        store: store to use instead of the spec's.
        new: begin a new training even if an unfinished one has the same key.
        rehash: read every raw file again to take its digest.
    """

    def opened() -> Run:
        options = RunOptions(window=window, fresh=new, rehash=rehash, **started_by(key))
        run = open_run(take_spec(spec, set), store_uri=store, options=options)
        return name_flow_run(run, window, set)

    begin_flow_run_logs()
    return with_lock(concurrency_lock(spec, set, store, key), lambda: end_of(opened, line))


@flow(name="resume", flow_run_name="resume-{run_id}")
def resume(run_id: str, store: str | None = None, from_step: int | None = None) -> State:
    """Continue a run that was stopped or failed: its inputs stay as they were resolved.

    Args:
        run_id: the run, as `trainwright status` lists it.
        store: store to search; default: .trainwright here, then those used before.
        from_step: continue from the committed checkpoint of this step; later checkpoints are set aside.
    """
    begin_flow_run_logs()
    return end_of(
        lambda: name_flow_run(reopen_run(run_id, store, from_step), "resumed"), functools.partial(work_with_lock, line)
    )


@attach
@within_budgets
@metered
@wrapped
def line(run: Run) -> RunReport:
    """The stages in order, then the report."""
    made: dict[str, Any] = {}
    try:
        with cost_tagged(run), cancellable():
            call("settings")
            admit(run)
            refuse_early(run)
            call("begin", run)
            for stage in stages():
                refuse_over(run)
                made[stage.name] = as_task(stage)(run, *(made[one.name] for one in stage.takes))
                if stage.name == run.spec.until:
                    break
        parts = {part: made.get(name) for part, name in REPORTED.items()}
        parts["checkpoint"] = parts["checkpoint"] or made["train"]
        ended = report(run, **parts)
        call("report", run, ended, parts)
        return ended
    except HandedOver:
        give_to_worker_again()
        raise
    except BaseException as error:
        if crash := crash_in(error):  # no report
            raise crash from None
        failure = as_error(error)
        parts = {part: made.get(name) for part, name in REPORTED.items()}
        ended = report(run, error=failure, **parts)
        call("report", run, ended, parts)
        if type(failure) is TrainwrightError:  # a bug of ours: its traceback belongs in the log
            raise
        return ended
