"""The whole line: from raw data to a promoted model. Read from top to bottom, it is the table of contents."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.states import State

from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import RunReport
from flows.states import as_state, explained, flow_name, overrides, started_by, tagged
from infra.orchestrator.cancelling import cancellable
from tasks.attach import attach
from tasks.orchestrated import evaluate, promote, shard, train, validate, verify
from tasks.report import report
from tasks.run import Run, open_run, reopen_run


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
    """Validate, shard, train, verify, evaluate and promote what a pipeline spec names.

    Args:
        spec: path of the spec, from the working directory.
        window: `START..END`, or a length such as `7d` that ends at the scheduled time.
        set: overrides, separated by spaces, such as `train.seed=1 tags.team=vision`.
        key: idempotency key; two runs with one key are one run.
        store: store to use instead of the spec's.
        new: begin a new training even if an unfinished one has the same key.
        rehash: read every raw file again to take its digest.
    """
    asked: dict[str, Any] = {"window": window, "store_uri": store, "fresh": new, "rehash": rehash}
    run = open_run(spec, overrides=overrides(set), **asked, **started_by(key))
    return as_state(run, line(run))


@flow(name="resume", flow_run_name="resume-{run_id}")
def resume(run_id: str, store: str | None = None, from_step: int | None = None) -> State:
    """Go on with a run that was stopped or failed: its inputs stay as they were resolved.

    Args:
        run_id: the run, as `trainwright status` lists it.
        store: store to look in; default: .trainwright here, then those used before.
        from_step: go on from the committed checkpoint of this step; later ones are set aside.
    """
    run = reopen_run(run_id, store, from_step)
    return as_state(run, line(run))


@attach
def line(run: Run) -> RunReport:
    """The stages in order."""
    made: dict = {}
    try:
        with tagged(run), cancellable():
            contract = validate(run)
            dataset = made["dataset"] = shard(run, contract)
            checkpoint = made["checkpoint"] = verify(run, train(run, dataset))
            evaluation = made["evaluation"] = evaluate(run, checkpoint, dataset)
            receipt = promote(run, checkpoint, dataset, evaluation)
        return report(run, receipt=receipt, **made)
    except Exception as error:
        told = explained(error)
        page = report(run, error=told, **made)
        if type(told) is TrainwrightError:  # a bug of ours: its traceback belongs in the log
            raise
        return page
