"""`run` and `resume`: the whole line as a Prefect flow in this process, waited for."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from data_contracts.errors import TrainwrightError, from_json
from data_contracts.handoffs import RunReport
from data_contracts.load import load_spec
from flows.commands.guard import Answer, coloured, log

QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "trainwright",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}
_told: dict[str, str] = {}


def run(arguments: argparse.Namespace) -> Answer:
    """The `run` command: waits for the verdict; a second run with the same key attaches to the first."""
    report = run_line(
        arguments.spec,
        window=arguments.window,
        overrides=arguments.set,
        key=arguments.key,
        store=arguments.store,
        new=arguments.new,
        rehash=arguments.rehash,
        trigger=arguments.trigger,
    )
    return answer(report, arguments)


def resume(arguments: argparse.Namespace) -> Answer:
    """The `resume` command: goes on from what is sealed, with the inputs that were resolved at the start."""
    from tasks.attach import final_report
    from tasks.planning import plan_resumed
    from tasks.run import reopen_run

    run = reopen_run(arguments.run, arguments.store, arguments.from_step)
    if final_report(run) is None:
        for step in plan_resumed(run):
            log.info("%s", step.line)
    connect("cli")
    from flows.retrain import resume as resume_flow

    asked = {"run_id": arguments.run, "store": arguments.store, "from_step": arguments.from_step}
    return answer(carried_out(resume_flow, **asked), arguments)


def run_line(
    spec: str,
    *,
    window: str | None = None,
    overrides: list[str] | tuple[str, ...] = (),
    key: str | None = None,
    store: str | None = None,
    new: bool = False,
    rehash: bool = False,
    trigger: str = "cli",
) -> RunReport:
    """Run a spec's whole line in this process and wait for its report."""
    load_spec(Path(spec).resolve(), overrides)  # a wrong spec is refused before any server is started
    connect(trigger)
    from flows.retrain import retrain

    return carried_out(
        retrain,
        spec=spec,
        window=window,
        set=shlex.join(overrides),
        key=key,
        store=store,
        new=new,
        rehash=rehash,
    )


def carried_out(flow: Any, **parameters: Any) -> RunReport:
    """The report of a flow that is run here; StorageUnavailable if the Prefect server went away."""
    from infra.orchestrator.api import unreachable

    try:
        return report_of(flow(**parameters, return_state=True))
    except TrainwrightError:
        raise
    except Exception as error:
        if away := unreachable(error):
            raise away from error
        raise


def connect(trigger: str) -> str:
    """Point this process at the Prefect server (started if need be) before Prefect is imported; returns its UI."""
    from infra.orchestrator.server import ensure_server

    os.environ.update({**QUIET, "TRAINWRIGHT_TRIGGER": trigger})
    server = ensure_server()
    if _told.get("ui") != server.ui_url:
        log.info("Prefect UI: %s", server.ui_url)
        _told["ui"] = server.ui_url
    return server.ui_url


def report_of(state: Any) -> RunReport:
    """The report that a flow's last state carries; raises what stopped the flow before there was a run."""
    data = state.result(raise_on_failure=False)
    if isinstance(data, BaseException):
        raise data
    return RunReport.from_json(data)


def answer(report: RunReport, arguments: argparse.Namespace) -> Answer:
    """A run's report for a person (one screen, verdict first) and for a program."""
    error = None if report.error is None else from_json(report.error)
    return Answer(text(report, coloured(arguments)), report.to_json(), report.exit_code, error)


def text(report: RunReport, colour: bool) -> str:
    """One screen about a run."""
    from tasks.report import cost_sentence

    shade = {"promoted": 32, "unchanged": 32, "not_promoted": 33}.get(report.verdict, 31)
    verdict = f"\033[{shade}m{report.verdict}\033[0m" if colour else report.verdict
    lines = [f"{verdict}: {report.sentence}", ""]
    for one in report.stages:
        reused = f" ← {one.reused_from}" if one.reused_from else ""
        said = "" if one.sentence and one.sentence in report.sentence else f"  {one.sentence}{reused}"
        lines.append(f"  {one.name:<9} {one.status:<9} {one.seconds:6.1f} s{said}")
    if report.metrics:
        lines += ["", "  metrics   " + ", ".join(f"{name} {value:.4f}" for name, value in report.metrics.items())]
    lines.append(f"  cost      {cost_sentence(report.cost)}")
    lines.append(f"  run       {report.run_id}")
    return "\n".join(lines)
