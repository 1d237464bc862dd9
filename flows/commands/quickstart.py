"""`quickstart`: runs the digits example four times: rejected, promoted, unchanged, not promoted."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from data_contracts.errors import UsageError
from data_contracts.run_report import RunReport
from flows.commands.doctor import check_machine
from flows.commands.guard import Answer, log
from flows.commands.queries import run_text
from flows.commands.run import run_line
from flows.connection import connect

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
SPEC = EXAMPLE / "pipeline.yaml"


@dataclass(frozen=True)
class Step:
    """One run of the quickstart: what it shows, its overrides, and its expected verdict and exit code."""

    title: str
    overrides: tuple[str, ...]
    verdicts: tuple[str, ...]
    exit_code: int


WIDTH = 150
FAULTY = "data.source=data/digits_faulty.parquet"
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
    _prepare()
    ui = connect("cli")
    reports = []
    for number, step in enumerate(STEPS, 1):
        log.info("\n[%d/%d] %s", number, len(STEPS), step.title)
        shown = "".join(f" --set {override}" for override in step.overrides)
        log.info("$ trainwright run %s%s", _short(SPEC), shown)
        report = run_line(str(SPEC), overrides=step.overrides)
        log.info("%s\nexit code %d%s", run_text(report, False), report.exit_code, _expected(step, report))
        reports.append(report)
    wrong = [step.title for step, report in zip(STEPS, reports, strict=True) if not _as_it_should(step, report)]
    value = {"ui": ui, "ok": not wrong, "runs": [report.to_json() for report in reports]}
    seconds = time.monotonic() - started
    line = f"NOT as expected: {'; '.join(wrong)}" if wrong else f"{len(reports)} runs, each as expected"
    return Answer(_screen(reports, wrong, ui, seconds), value, 1 if wrong else 0, line=line)


def _prepare() -> None:
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


def _screen(reports: list[RunReport], wrong: list[str], ui: str, seconds: float) -> str:
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
    spec = _short(SPEC)
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
