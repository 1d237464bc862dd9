"""`ci`: run the line for a CI job, here or as a deployment on the Prefect server, and write what the host shows.

On GitHub, a runner reads commands in each line of the log. So this is switched off, except for our own lines.
"""

from __future__ import annotations

import argparse
import atexit
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_contracts.errors import Cancelled, StorageUnavailable, TrainwrightError, UsageError, from_json
from data_contracts.load import load_spec
from data_contracts.run_report import CiReport
from flows.commands.guard import Answer, log, run_text
from flows.commands.run import run_line
from flows.commands.server import QUIET, flow_parameters
from infra import stopping
from infra.audit import TRIGGER, revision
from infra.files import replace_text
from infra.orchestrator import api, remote_runs
from infra.orchestrator.server import ensure_server, server_status
from infra.written_files import record_written
from tasks.ci import (
    MOST_BYTES,
    SpecFiles,
    checkout_root,
    cut,
    dotenv,
    findings,
    github_outputs,
    junit,
    output_values,
    report_of_error,
    report_of_run,
    spec_files,
    summary,
    workflow_commands,
)
from tasks.pages.facts import facts_of, tried
from tasks.run.resolve import RunOptions
from tasks.run.run import reopen_run
from tasks.run.spec_check import read_spec

SUMMARY, OUTPUT = "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"
_FILES = ("junit", "summary", "dotenv")
# Nobody who writes into the log can know it.
_TOKEN = secrets.token_hex(16)


def ci(arguments: argparse.Namespace) -> Answer:
    """The `ci` command: the exit code is the run's own. Every failure is written, too, also a bug of ours."""
    spec = Path(arguments.spec).resolve()
    _refuse_files(arguments)
    host = _Host(arguments, spec, os.environ)
    host.stop_commands()
    try:
        answer, report, notes = _remote(arguments, spec) if arguments.deployment else _here(arguments, spec)
        host.write(report, notes)
        return answer
    except BaseException as error:  # not only Exception: a panic of a library in Rust is a BaseException
        host.write(report_of_error(_as_error(error), _name(spec)))
        raise


def _as_error(error: BaseException) -> TrainwrightError:
    """What the host shows of a failure. Libraries turn an exception that a signal raises in them into their own."""
    if isinstance(error, TrainwrightError):
        return error
    if isinstance(error, KeyboardInterrupt) or stopping.received:
        return Cancelled("The job was cancelled.")
    return TrainwrightError(type(error).__name__)


def _here(arguments: argparse.Namespace, spec: Path) -> tuple[Answer, CiReport, list[str]]:
    """Run the line in this process, as `run --trigger ci` does."""
    options = RunOptions(
        window=arguments.window, key=arguments.key, trigger="ci", fresh=arguments.new, rehash=arguments.rehash
    )
    ended = run_line(arguments.spec, overrides=arguments.set, store=arguments.store, options=options)
    error = None if ended.error is None else from_json(ended.error)
    shown = run_text(ended, colour=False)
    answer = Answer(shown, ended.to_json(), ended.exit_code, error, line=shown.partition("\n")[0])
    facts = tried(lambda: facts_of(reopen_run(ended.run_id, arguments.store)))
    return answer, report_of_run(ended, facts), []


def _remote(arguments: argparse.Namespace, spec: Path) -> tuple[Answer, CiReport, list[str]]:
    """Start the deployment and wait for its run; a signal here cancels it there."""
    read_spec(spec, arguments.set).check(arguments.window)
    _connect()
    title = f"retrain/{arguments.deployment.removeprefix('retrain/')}"
    try:
        with api.asking(retries=2) as client:
            flow_run = remote_runs.begin(client, title, flow_parameters(arguments))
        log.info("started the remote run %s of %s", flow_run.name, title)
        ended = remote_runs.follow(flow_run)
    except TrainwrightError:
        raise
    except Exception as error:
        raise api.unreachable(error) or error from error
    if ended.report is None:
        raise remote_runs.without_report(ended)
    return _answer(ended.report), ended.report, _notes(ended.report, title, spec)


def _connect() -> None:
    """Use the Prefect server that is there; StorageUnavailable if none answers. None is started: it would be empty."""
    os.environ.update({**QUIET, TRIGGER: "ci"})
    if api.chosen_server(None) is None and server_status() is None:
        raise StorageUnavailable(
            "No Prefect server is known here that could run the deployment.",
            remedy="Set PREFECT_API_URL to its address, and PREFECT_API_AUTH_STRING if it asks for a password.",
        )
    ensure_server()


def _notes(report: CiReport, title: str, spec: Path) -> list[str]:
    """What the reader of the job must know about a remote run."""
    notes = []
    if report.pipeline != (name := _name(spec)) and report.run_id:
        notes.append(f"The deployment {title} ran the pipeline {report.pipeline}, and not {name} of this checkout.")
    commit, _ = revision(spec.parent)
    if commit and report.commit and report.commit != commit:
        notes.append(
            f"The remote run is of commit {report.commit[:12]}, and this job of {commit[:12]}: a deployment runs the "
            "code that it names."
        )
    return notes


def _answer(report: CiReport) -> Answer:
    """A remote run for a person and for a program."""
    lines = [f"{report.verdict}: {report.sentence}", ""]
    for case in report.of_kind("stage"):
        lines.append(f"  {case.name:<9} {case.status:<8} {case.seconds or 0:6.1f} s  {case.sentence}")
    lines.append(f"  run       {report.run_id or 'none'}")
    return Answer("\n".join(lines), report.to_json(), report.exit_code, line=lines[0])


def _name(spec: Path) -> str:
    return tried(lambda: load_spec(spec).name) or (spec.parent.name if spec.stem == "pipeline" else spec.stem)


def _refuse_files(arguments: argparse.Namespace) -> None:
    """UsageError, before anything runs, for a file that cannot be written."""
    for option in _FILES:
        path = getattr(arguments, option)
        if path is not None and not os.access(Path(path).parent, os.W_OK):
            raise UsageError(
                f"--{option}: {path} cannot be written: there is no such folder that is yours.",
                remedy="Name a file in a folder that exists.",
            )


@dataclass(frozen=True)
class _Host:
    """What a CI host reads: files that the command line or the host names, and lines of the log."""

    arguments: argparse.Namespace
    spec: Path
    environment: Mapping[str, str]

    @property
    def _is_github(self) -> bool:
        return self.environment.get("GITHUB_ACTIONS") == "true"

    def stop_commands(self) -> None:
        """Have GitHub's runner take no line of the log for a command, until this process ends."""
        if self._is_github:
            self._say([f"::stop-commands::{_TOKEN}"])
            atexit.register(self._say, [f"::{_TOKEN}::"])

    def write(self, report: CiReport, notes: list[str] | None = None) -> None:
        """Write everything; what cannot be written is one warning, because the run has ended as it has."""
        notes = notes or []
        options = self.arguments
        made = {
            options.junit: lambda: junit(report),
            options.summary: lambda: summary(report, notes),
            options.dotenv: lambda: dotenv(output_values(report)),
        }
        for path, make in made.items():
            if path is not None:
                self._try(path, lambda path=path, make=make: replace_text(Path(path), make()))
        marked = findings(report, self._spec_files(report), notes) if self._is_github else []
        self._to_github(report, notes, workflow_commands(marked))

    def _spec_files(self, report: CiReport) -> SpecFiles:
        root = checkout_root(self.spec, self.environment)
        if report.cause == TrainwrightError.cause or (report.run_id and report.pipeline != _name(self.spec)):
            # Reading the files may be what failed; or the run was of another pipeline, whose lines are not these.
            return SpecFiles(root, self.spec)
        return spec_files(self.spec, root, self.arguments.set)

    def _to_github(self, report: CiReport, notes: list[str], commands: list[str]) -> None:
        page, output = self.environment.get(SUMMARY), self.environment.get(OUTPUT)
        if page and self.arguments.summary is None:
            self._try(page, lambda: _append(Path(page), summary(report, notes), MOST_BYTES))
        if output:
            self._try(output, lambda: _append(Path(output), github_outputs(output_values(report))))
        if commands:
            self._say([f"::{_TOKEN}::", *commands, f"::stop-commands::{_TOKEN}"])

    def _try(self, path: str, write: Any) -> None:
        try:
            write()
            record_written(Path(path))
        except OSError as error:
            log.warning("%s could not be written: %s", path, error.strerror)

    def _say(self, lines: list[str]) -> None:
        print("\n".join(lines), file=sys.stderr, flush=True)


def _append(path: Path, content: str, most_bytes: int | None = None) -> None:
    """Add to a file of the host's, which may have content of the same step."""
    if most_bytes is not None:
        before = path.stat().st_size if path.exists() else 0
        content = cut(content, most_bytes - before)
    with path.open("a", encoding="utf-8") as file:
        file.write(content)
