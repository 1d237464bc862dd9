"""`run`, `resume`, `backfill`, `quickstart`: run the whole line as a Prefect flow and wait for it.

`backfill` runs a pipeline once for each window of a span, each window in a process of its own. `quickstart` runs the
digits example four times: rejected, promoted, unchanged, not promoted. `train --profile` profiles the steps of a
training and writes page and trace to files.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.run_report import RunReport
from flows.commands.doctor import check_machine
from flows.commands.guard import Answer, log, run_answer, run_text
from flows.commands.server import connect
from flows.commands.terminal import table
from flows.features import call, hooks, is_present
from flows.stages import stages
from infra.files import replace_bytes
from infra.orchestrator.api import unreachable
from infra.processes.processes import marked_env, module_command, new_mark
from infra.settings import state_folder
from infra.sources.resolve import Window
from tasks.run.executions import final_report
from tasks.run.progress import RunEnded, notify
from tasks.run.resolve import DEFAULTS, RunOptions
from tasks.run.run import Run, open_spec_store, reopen_run
from tasks.run.spec_check import SPEC_AT_HAND, read_spec
from tasks.schedules import Backfill, windows_between
from tasks.stages.stage import EarlierHandoffs
from tasks.stages.train import train

if is_present("step profile"):
    from tasks.profile import Profiled, profile, profile_page, refuse_elsewhere, sentence


# After one of these, the other windows would end in the same way.
_STOPPING_CODES = (1, 2, 130)
# A refusal repeats its exit code.
_REFUSED_CODES = {"rejected": 3, "not_promoted": 4}
_WINDOWS_HEAD = ["window", "verdict", "run"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
EXAMPLE_SPEC = EXAMPLE / "pipeline.yaml"
WIDTH = 150
FAULTY = "data.source=data/digits_faulty.parquet"


def run(arguments: argparse.Namespace) -> Answer:
    """The `run` command: waits for the verdict; a second run with the same key attaches to the first."""
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
    return run_answer(report, arguments)


def resume(arguments: argparse.Namespace) -> Answer:
    """The `resume` command: continues from what is sealed, with the inputs that were resolved at the start."""
    run = reopen_run(arguments.run, arguments.store, arguments.from_step)
    if final_report(run) is None:
        for plan in hooks("resume"):
            for step in plan(run, stages()):
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
    loaded = read_spec(spec, overrides)
    loaded.check(options.window)
    call("settings")
    connect(options.trigger)
    from flows.retrain import retrain

    SPEC_AT_HAND.set(loaded)
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


def profiled_stage(run: Run, arguments: argparse.Namespace) -> Answer:
    """The answer of `train --profile`, which trains nothing that stays."""
    if arguments.out or arguments.curves:
        raise UsageError(
            "train: --profile trains nothing that stays, so --out and --curves have nothing to write.",
            remedy="Leave them out, or leave --profile out.",
        )
    refuse_elsewhere(run.spec.train)
    said, value = write_profile(run, profile(run, *EarlierHandoffs(run).inputs(train)))
    return Answer(said, {"profile": value})


def write_profile(run: Run, profiled: Profiled) -> tuple[str, dict[str, object]]:
    """Write page and trace to the state folder, and beside the run's page; returns where, for people and programs."""
    page = profile_page(run, profiled).encode()
    folder = state_folder() / "pages"
    folder.mkdir(exist_ok=True)
    shown = {"page": (folder / f"{run.run_id}-profile.html", page)}
    if profiled.trace:
        shown["trace"] = (folder / f"{run.run_id}-profile.trace.json.gz", profiled.trace)
    for path, content in shown.values():
        replace_bytes(path, content, mode=0o600)
    files = {name: str(path) for name, (path, _) in shown.items()}
    trace = f"; trace for ui.perfetto.dev: {files['trace']}" if "trace" in files else ""
    return f"{sentence(profiled)}\n            page: {files['page']}{trace}", {**profiled.to_json(), **files}


def backfill(arguments: argparse.Namespace) -> Answer:
    """The `backfill` command: windows that have a verdict are skipped; the exit code is the first one that is not 0."""
    if arguments.parallel < 1:
        raise UsageError(f"--parallel: {arguments.parallel} is not a number of runs.", remedy="Give 1 or more.")
    windows = windows_between(arguments.from_, arguments.to, arguments.every)
    loaded = read_spec(arguments.spec, arguments.set)
    spec = loaded.spec
    if isinstance(spec.data, str) or spec.data.window is None:
        raise UsageError(
            f"{loaded.path}: data.window: the spec reads no window, so each run would read the same data.",
            remedy="Add data.window to the spec, or run it once with `trainwright run`.",
        )
    loaded.check(str(windows[0]))
    planned = Backfill(open_spec_store(spec, loaded.root, arguments.store), spec.name, windows)
    planned.refuse_overlaps()
    connect("cli")  # one server for all of them
    ends = _WindowRuns(planned, arguments).all()
    rows = [[str(window), *ends.get(window, ("not begun", "", 0))[:2]] for window in windows]
    codes = [ends[window][2] for window in windows if window in ends]
    code = next((one for one in codes if one in _STOPPING_CODES), next((one for one in codes if one), 0))
    return Answer(
        table(_WINDOWS_HEAD, rows), {"windows": [dict(zip(_WINDOWS_HEAD, row, strict=True)) for row in rows]}, code
    )


class _WindowRuns:
    """The processes of a backfill; if this process is ended by a signal or an error, they are asked to end."""

    def __init__(self, planned: Backfill, arguments: argparse.Namespace) -> None:
        self._planned, self._arguments = planned, arguments
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def all(self) -> dict[Window, tuple[str, str, int]]:
        """Verdict, run id and exit code of each window that was begun, or that had ended before."""
        ends: dict[Window, tuple[str, str, int]] = {}
        waiting, at_once = list(self._planned.windows), self._arguments.parallel
        with ThreadPoolExecutor(at_once) as pool:
            futures: dict[Future[tuple[str, str, int]], Window] = {}
            try:
                while waiting or futures:
                    while waiting and len(futures) < at_once and not self._stopped:
                        window = waiting.pop(0)
                        futures[pool.submit(self._one, window)] = window
                    for done in wait(futures, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        window = futures.pop(done)
                        ends[window] = verdict, _, code = done.result()
                        log.info("%s: %s", window, verdict)
                        self._stopped = self._stopped or code in _STOPPING_CODES
                    if self._stopped and not futures:
                        return ends
            except BaseException:
                self._stopped = True
                for process in list(self._running):
                    process.send_signal(signal.SIGINT)
                raise
        return ends

    def _one(self, window: Window) -> tuple[str, str, int]:
        before = self._planned.ended(window)
        if before is not None:
            return f"{before.verdict} before", str(before.run_id), _REFUSED_CODES.get(str(before.verdict), 0)
        self._planned.begin(window)
        given = self._arguments
        command = module_command("flows.cli", "run", str(Path(given.spec).resolve()), "--json", "--quiet")
        command += ["--window", str(window), "--key", self._planned.key(window)]
        command += ["--store", given.store] if given.store else []
        command += [part for one in given.set for part in ("--set", one)] + (["--rehash"] if given.rehash else [])
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=marked_env(new_mark()))
        self._running.add(process)
        printed, _ = process.communicate()
        self._running.discard(process)
        return self._ended(window, printed, process.returncode)

    def _ended(self, window: Window, printed: str, code: int) -> tuple[str, str, int]:
        try:
            value = json.loads(printed)
        except ValueError:
            return f"it ended with {code} and left no report", "", code or 1
        if "error" in value and "verdict" not in value:
            return str(value["error"]["message"]), "", code
        report = RunReport.from_json(value)
        self._planned.end(window, report)
        return report.verdict, report.run_id, code


@dataclass(frozen=True)
class Step:
    """One run of the quickstart: what it shows, its overrides, and its expected verdict and exit code."""

    title: str
    overrides: tuple[str, ...]
    verdicts: tuple[str, ...]
    exit_code: int


STEPS = (
    Step("data with planted faults: the contract rejects it", (FAULTY,), ("rejected",), 3),
    Step("the true data: from raw rows to digits@champion", (), ("promoted", "unchanged"), 0),
    Step("the same again: everything is reused", (), ("unchanged",), 0),
    Step("a worse setting: trained, but not promoted", ("train.lightning=worse.yaml",), ("not_promoted",), 4),
)


def quickstart(arguments: argparse.Namespace) -> Answer:
    """The `quickstart` command; exit code 0 if each step ended as expected."""
    started = time.monotonic()
    check_machine()
    _prepare_example()
    ui = connect("cli")
    reports = []
    for number, step in enumerate(STEPS, 1):
        log.info("\n[%d/%d] %s", number, len(STEPS), step.title)
        shown = "".join(f" --set {override}" for override in step.overrides)
        log.info("$ trainwright run %s%s", _short(EXAMPLE_SPEC), shown)
        report = run_line(str(EXAMPLE_SPEC), overrides=step.overrides)
        log.info("%s\nexit code %d%s", run_text(report, False), report.exit_code, _expected(step, report))
        reports.append(report)
    wrong = [step.title for step, report in zip(STEPS, reports, strict=True) if not _as_it_should(step, report)]
    value = {"ui": ui, "ok": not wrong, "runs": [report.to_json() for report in reports]}
    seconds = time.monotonic() - started
    line = f"NOT as expected: {'; '.join(wrong)}" if wrong else f"{len(reports)} runs, each as expected"
    return Answer(_quickstart_screen(reports, wrong, ui, seconds), value, 1 if wrong else 0, line=line)


def _prepare_example() -> None:
    script = EXAMPLE / "prepare.py"
    if not script.exists():
        raise UsageError(
            f"The digits example is not at {EXAMPLE}.", remedy="Run quickstart from a checkout of Trainwright."
        )
    subprocess.run([sys.executable, str(script)], check=True, stdout=sys.stderr)


def _as_it_should(step: Step, report: RunReport) -> bool:
    return report.verdict in step.verdicts and report.exit_code == step.exit_code


def _expected(step: Step, report: RunReport) -> str:
    return ", as expected" if _as_it_should(step, report) else f", but {' or '.join(step.verdicts)} was expected"


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _quickstart_screen(reports: list[RunReport], wrong: list[str], ui: str, seconds: float) -> str:
    """The last screen: what ran and what was reused, metrics, cost, links, and next steps."""
    lines = ["", "─" * 78, f"Trainwright quickstart: {len(reports)} runs in {seconds:.0f} s", ""]
    for number, (step, report) in enumerate(zip(STEPS, reports, strict=True), 1):
        ran = ", ".join(stage.name for stage in report.stages if stage.status == "ran") or "nothing"
        reused = ", ".join(stage.name for stage in report.stages if stage.status == "reused") or "nothing"
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in report.metrics.items()) or "none"
        lines += [
            f"  {number}. {step.title}",
            f"     {report.verdict}, exit code {report.exit_code}: {shorten(report.sentence, WIDTH, placeholder=' …')}",
            f"     ran {ran}; reused {reused}; metrics {metrics}; {report.cost.money}",
        ]
    spent = [report.cost.usd for report in reports]
    total = "unknown" if None in spent else f"{sum(one or 0.0 for one in spent):.4f} USD"
    price = reports[0].cost
    rate = f" at {price.usd_per_hour:g} USD/h" if price.usd_per_hour is not None else ""
    spec = _short(EXAMPLE_SPEC)
    lines += [
        "",
        f"  cost       {total} in all ({price.machine}{rate})",
        f"  look       {ui}   (`trainwright ui` prints a link that signs you in, `trainwright down` stops the server)",
        f"  prove      trainwright prove digits@champion --store {_short(EXAMPLE / '.trainwright')}",
        f"  plan       trainwright plan {spec}",
        "  your own   trainwright init my-pipeline",
    ]
    if wrong:
        lines += ["", "  NOT as expected: " + "; ".join(wrong)]
    return "\n".join(lines)
