"""`run` and `resume`: run the whole line as a Prefect flow in this process and wait for it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_contracts.errors import TrainwrightError
from data_contracts.run_report import RunReport
from flows.commands.guard import Answer, log
from flows.commands.queries import run_answer
from flows.connection import connect
from flows.stages import stages
from tasks.run.resolve import DEFAULTS, RunOptions
from tasks.run.spec_check import check_spec
from tasks.telemetry import refuse_wrong_settings


def run(arguments: argparse.Namespace) -> Answer:
    """The `run` command: waits for the verdict; a second run with the same key attaches to the first."""
    if arguments.profile:
        from flows.commands.profiled import profiled_run, refuse_spec

        refuse_spec(arguments)
    report = run_line(
        arguments.spec,
        overrides=arguments.set,
        store=arguments.store,
        options=RunOptions(
            window=arguments.window,
            key=arguments.key,
            trigger=arguments.trigger,
            fresh=arguments.new,
            rehash=arguments.rehash,
        ),
    )
    said = run_answer(report, arguments)
    return profiled_run(report, said, arguments) if arguments.profile else said


def resume(arguments: argparse.Namespace) -> Answer:
    """The `resume` command: continues from what is sealed, with the inputs that were resolved at the start."""
    from tasks.queries.plan import plan_resumed
    from tasks.run.executions import final_report
    from tasks.run.run import reopen_run

    run = reopen_run(arguments.run, arguments.store, arguments.from_step)
    if final_report(run) is None:
        for step in plan_resumed(run, stages()):
            log.info("%s", step.line)
    connect("cli")
    from flows.retrain import resume as resume_flow

    asked = {"run_id": arguments.run, "store": arguments.store, "from_step": arguments.from_step}
    return run_answer(run_flow(resume_flow, **asked), arguments)


def run_line(
    spec: str,
    *,
    overrides: Sequence[str] = (),
    store: str | None = None,
    options: RunOptions = DEFAULTS,
) -> RunReport:
    """Run a spec's whole line in this process and wait for its report."""
    # Mistakes are refused before a server is started.
    check_spec(Path(spec).resolve(), overrides, options.window)
    refuse_wrong_settings()
    connect(options.trigger)
    from infra.processes.light_imports import light_imports

    with light_imports():
        from flows.retrain import retrain

    return run_flow(
        retrain,
        spec=spec,
        window=options.window,
        set=shlex.join(overrides),
        key=options.key,
        store=store,
        new=options.fresh,
        rehash=options.rehash,
    )


def run_flow(flow: Any, **parameters: Any) -> RunReport:
    """The report of a flow that runs here; StorageUnavailable if the Prefect server stopped answering."""
    from infra.orchestrator.api import unreachable
    from tasks.run.progress import RunEnded, notify

    try:
        return report_of(flow(**parameters, return_state=True))
    except TrainwrightError:
        raise
    except Exception as error:
        if away := unreachable(error):
            raise away from error
        raise
    finally:
        notify(RunEnded())


def report_of(state: Any) -> RunReport:
    """The report in a flow's final state; raises the error of a flow that stopped before there was a run."""
    data = state.result(raise_on_failure=False)
    if isinstance(data, BaseException):
        raise data
    return RunReport.from_json(data)
