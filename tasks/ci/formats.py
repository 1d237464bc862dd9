"""Writes a CI report and its findings as CI services read them.

- JUnit XML: a test suite for each kind of case.
- A Markdown page of limited size; every text is escaped.
- The values that a job's next step gets: names and numbers without anything that a shell reads otherwise.
- GitHub Actions: workflow commands, and lines of the file for outputs.
- GitLab: a Code Quality report, and a dotenv report.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from data_contracts.errors import TrainwrightError
from data_contracts.quoting import escaped
from data_contracts.run_report import CiCase, CiReport
from infra.orchestrator.artifacts import as_code, as_text
from tasks.ci.report import Finding, Level
from tasks.run.report import cost_sentence

_TITLES = {
    "spec": "spec",
    "stage": "stages",
    "expectation": "contract",
    "checkpoint": "checkpoints",
    "gate": "gates",
}
# GitHub drops a step's summary that is larger as a whole.
MOST_BYTES = 1024 * 1024
_CUT = "\n\n**The summary is cut here: it would exceed what the host accepts.**\n"
_MARKS = {"passed": "✅", "failed": "❌", "warned": "⚠️", "skipped": "⏭️"}
_HEADS = {"spec": "Spec", "stage": "Stages", "gate": "Gates", "expectation": "Contract", "checkpoint": "Checkpoints"}
# Names of metrics that are safe wherever a workflow puts them, also unquoted in a shell.
_SAFE = re.compile(r"[\w.@/-]{1,100}", re.ASCII)
# Of one kind and one step, GitHub shows so many and drops the rest without a word.
MOST_ANNOTATIONS = 10
# GitLab refuses a larger dotenv report as a whole.
MOST_DOTENV_BYTES = 5 * 1024
_SEVERITIES = {"error": "critical", "warning": "minor", "notice": "info"}


def junit(report: CiReport) -> str:
    """The report as JUnit XML. A case that is only warned of has passed; its sentence is its output.

    A run that did not end well and has no failed case gets one, the run itself; an error if it is a bug of ours.
    """
    title = escaped(f"trainwright {report.pipeline}")
    root = ET.Element("testsuites", name=title, tests="0", failures="0", errors="0", skipped="0")
    cases = list(report.cases)
    for kind, suite_name in _TITLES.items():
        if mine := [case for case in cases if case.kind == kind]:
            _suite(root, f"{report.pipeline}.{suite_name}", mine)
    if report.exit_code and not any(case.status == "failed" for case in cases):
        case = CiCase(kind="stage", name="run", status="failed", sentence=report.sentence)
        _suite(root, report.pipeline, [case], "error" if report.cause == TrainwrightError.cause else "failure")
    for suite in root:
        for count in ("tests", "failures", "errors", "skipped"):
            root.set(count, str(int(root.attrib[count]) + int(suite.attrib[count])))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(root: ET.Element, name: str, cases: Sequence[CiCase], wrong: str = "failure") -> None:
    statuses = [case.status for case in cases]
    num_wrong = str(statuses.count("failed"))
    suite = ET.SubElement(
        root,
        "testsuite",
        name=escaped(name),
        tests=str(len(cases)),
        failures=num_wrong if wrong == "failure" else "0",
        errors=num_wrong if wrong == "error" else "0",
        skipped=str(statuses.count("skipped")),
        time=f"{sum(case.seconds or 0.0 for case in cases):.3f}",
    )
    for case in cases:
        made = ET.SubElement(suite, "testcase", classname=escaped(name), name=escaped(case.name))
        made.set("time", f"{case.seconds or 0.0:.3f}")
        sentence = escaped(case.sentence)
        if case.status == "failed":
            ET.SubElement(made, wrong, message=sentence).text = sentence
        elif case.status == "skipped":
            ET.SubElement(made, "skipped", message=sentence)
        elif sentence:
            ET.SubElement(made, "system-out").text = sentence


def summary(report: CiReport, notes: Sequence[str] = (), most_bytes: int = MOST_BYTES) -> str:
    """The page: verdict first, then metrics, then the cases of each kind, those that failed first.

    Args:
        notes: sentences for the reader of this job.
        most_bytes: size that the page must not exceed in UTF-8.
    """
    mark = "❌" if report.exit_code not in (0, 9) else "⏳" if report.exit_code else "✅"
    lines = [f"## {mark} {as_text(report.pipeline)}: {as_text(report.verdict.replace('_', ' '))}", ""]
    lines += [as_text(report.sentence), *(f"\n> {as_text(note)}" for note in notes), ""]
    lines += _facts(report)
    for kind, head in _HEADS.items():
        if cases := [case for case in report.cases if case.kind == kind]:
            lines += ["", f"### {head}", "", *_table(cases)]
    return cut("\n".join(lines) + "\n", most_bytes)


def cut(page: str, most_bytes: int) -> str:
    """The page, cut at the end of a line and with a sentence that says so if it is too large; "" if nothing fits."""
    content = page.encode()
    if len(content) <= most_bytes:
        return page
    room = most_bytes - len(_CUT.encode())
    if room <= 0:
        return ""
    kept = content[:room].rpartition(b"\n")[0]
    return kept.decode() + _CUT


def _facts(report: CiReport) -> list[str]:
    rows = [("Run", as_code(report.run_id))] if report.run_id else []
    if report.version:
        rows.append(("Model", as_text(report.version)))
    if report.commit:
        rows.append(("Commit", as_code(report.commit[:12] + (" with changes" if report.dirty else ""))))
    rows += [(as_text(name), f"{value:.4f}") for name, value in report.metrics.items()]
    if report.run_id:
        rows += [("Cost", as_text(cost_sentence(report.cost)))]
        rows += [("More", as_code(f"trainwright show {report.run_id}"))]
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)] if rows else []


def _table(cases: Sequence[CiCase]) -> list[str]:
    ordered = sorted(cases, key=lambda case: ("failed", "warned", "skipped", "passed").index(case.status))
    lines = ["| | | |", "|---|---|---|"]
    for case in cases if cases[0].kind == "stage" else ordered:
        seconds = "" if case.seconds is None else f" ({case.seconds:.1f} s)"
        lines.append(f"| {_MARKS[case.status]} | {as_text(case.name)}{seconds} | {as_text(case.sentence)} |")
    return lines


def output_values(report: CiReport) -> dict[str, str]:
    """Each output by its name; "" for what the run does not have.

    `metrics` is a JSON object. A metric is left out if it is not finite, or its name has more than letters, digits and
    `_.@/-`.
    """
    model, cost = report.model, report.cost
    metrics = {name: value for name, value in report.metrics.items() if _SAFE.fullmatch(name) and math.isfinite(value)}
    return {
        "run_id": _safe(report.run_id),
        "verdict": report.verdict,
        "exit_code": str(report.exit_code),
        "model": "" if model is None else _safe(model.name),
        "version": "" if model is None or model.version is None else str(model.version),
        "metrics": json.dumps(metrics, separators=(",", ":")),
        "cost_usd": "" if cost.usd is None else f"{cost.usd:.4f}",
        "node_seconds": f"{cost.node_seconds:.0f}",
    }


def _safe(name: str) -> str:
    return name if _SAFE.fullmatch(name) else ""


def workflow_commands(findings: Sequence[Finding]) -> list[str]:
    """Workflow commands for the findings, at most ten of a kind; the last one says how many more there are."""
    lines: list[str] = []
    for level in ("error", "warning", "notice"):
        lines += map(_command, _at_most([one for one in findings if one.level == level], level))
    return lines


def _at_most(found: list[Finding], level: Level) -> list[Finding]:
    if len(found) <= MOST_ANNOTATIONS:
        return found
    kept = found[: MOST_ANNOTATIONS - 1]
    more = len(found) - len(kept)
    return [*kept, Finding(level, f"{more} more", f"{more} more are not shown here; the step's summary lists all.")]


def _command(finding: Finding) -> str:
    properties = {"file": finding.file, "line": str(finding.line)} if finding.file else {}
    properties["title"] = finding.title
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{finding.level} {listed}::{_data(finding.sentence)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def github_outputs(values: Mapping[str, str]) -> str:
    """Lines for the file `GITHUB_OUTPUT`; each value must be a single line."""
    for value in values.values():
        assert "\n" not in value, "a value of several lines could set other outputs"
        assert "\r" not in value
    return "".join(f"{name}={value}\n" for name, value in values.items())


def code_quality(findings: Sequence[Finding]) -> str:
    """The findings as a Code Quality report. Each has a place: what stands nowhere in the checkout is left out."""
    entries = []
    for one in findings:
        if not one.file:
            continue
        # GitLab compares findings of two commits by it, so a moved line is the same finding.
        fingerprint = hashlib.sha256(json.dumps([one.file, one.title, one.sentence]).encode()).hexdigest()
        entries.append(
            {
                "description": one.sentence,
                "check_name": f"trainwright: {one.title}",
                "fingerprint": fingerprint,
                "severity": _SEVERITIES[one.level],
                "location": {"path": one.file, "lines": {"begin": one.line}},
            }
        )
    return json.dumps(entries, indent=1) + "\n"


def dotenv(values: Mapping[str, str]) -> str:
    """The outputs as variables `TRAINWRIGHT_<NAME>`; metrics that would make the report too large are left out."""
    lines = {name: f"TRAINWRIGHT_{name.upper()}={value}\n" for name, value in values.items()}
    if sum(len(line.encode()) for line in lines.values()) > MOST_DOTENV_BYTES:
        lines["metrics"] = "TRAINWRIGHT_METRICS={}\n"
    return "".join(lines.values())
