"""The CI report of a run, and the forms in which CI services read it.

Everything here may be public, so no value of the data and no error's own text is in it.

- The report: a case for each stage, expectation and gate.
- The findings: where in the spec and its suite the cases stand that CI should mark, the most important first.
- JUnit XML: a test suite for each kind of case.
- A Markdown page of limited size; every text is escaped.
- The values that a job's next step gets: names and numbers without anything that a shell reads otherwise.
- GitHub Actions: workflow commands, and lines of the file for outputs.
- GitLab: a dotenv report.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

from data_contracts.contract.reports import Result
from data_contracts.contract.suites import SEVERITIES, load_suite, suite_digest
from data_contracts.errors import Cancelled, SpecError, TrainwrightError, UsageError, from_json
from data_contracts.handoffs import ContractReport
from data_contracts.load import load_spec
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.pipeline_spec.promote import GateSpec
from data_contracts.quoting import escaped, one_line
from data_contracts.records import GateResult
from data_contracts.run_report import CaseStatus, CiCase, CiReport, RunReport, StageResult
from data_contracts.yaml_text import Document, FieldPath, read_document
from infra.orchestrator.artifacts import as_code, as_text
from infra.orchestrator.events import sentence_of
from infra.orchestrator.remote_runs import is_for_ci, keep_ci_report
from tasks.pages.facts import Facts, gather, tried
from tasks.run.report import VERDICTS, cost_sentence
from tasks.run.run import Run
from tasks.stages.artifacts import report_results

# The section of the spec that a stage is about.
SECTIONS = {
    "validate": "contract",
    "shard": "shards",
    "train": "train",
    "verify": "train",
    "evaluate": "evaluate",
    "promote": "promote",
}
_STAGES: dict[str, CaseStatus] = {"ran": "passed", "reused": "passed", "skipped": "skipped", "waiting": "skipped"}
# Fixed, because an error's text may quote what was being read.
_WITHOUT_RUN: dict[type[TrainwrightError], str] = {
    Cancelled: "The job was cancelled.",
    TrainwrightError: "An internal error of Trainwright ended the job; its log says where the traceback is.",
}
_ASKED = ("min", "max", "min_gain", "margin", "max_gap")
_PLACED = re.compile(r"(?P<place>[^:\n]+:\d+): (?P<sentence>.+)")
Level = Literal["error", "warning", "notice"]
_ORDER = ("spec", "gate", "expectation", "checkpoint", "stage")
_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")
_JUNIT_SUITES = {
    "spec": "spec",
    "stage": "stages",
    "expectation": "contract",
    "gate": "gates",
}
# GitHub drops a step's summary that is larger as a whole.
MOST_BYTES = 1024 * 1024
_CUT = "\n\n**The summary is cut here: it would exceed what the host accepts.**\n"
_MARKS = {"passed": "✅", "failed": "❌", "warned": "⚠️", "skipped": "⏭️"}
_SUMMARY_HEADS = {
    "spec": "Spec",
    "stage": "Stages",
    "gate": "Gates",
    "expectation": "Contract",
}
# Names of metrics that are safe wherever a workflow puts them, also unquoted in a shell.
_SAFE = re.compile(r"[\w.@/-]{1,100}", re.ASCII)
# Of one kind and one step, GitHub shows so many and drops the rest without a word.
MOST_ANNOTATIONS = 10
# GitLab refuses a larger dotenv report as a whole.
MOST_DOTENV_BYTES = 5 * 1024


def keep_report(run: Run, report: RunReport) -> None:
    """Keep the CI report of a run that has ended, if a CI job started the flow run that is carried out here."""
    if is_for_ci():
        keep_ci_report(lambda: report_of_run(report, gather(run, report)))


def keep_failure(error: TrainwrightError) -> None:
    """Keep the CI report of a flow run that failed without a report of its run, if a CI job started it."""
    from prefect.runtime import deployment

    if is_for_ci():
        keep_ci_report(lambda: report_of_error(error, str(deployment.name)))


def report_of_run(report: RunReport, facts: Facts | None) -> CiReport:
    """The CI report of a run that has ended.

    Args:
        facts: what its store has about it; None if the store cannot be read.
    """
    error = None if report.error is None else from_json(report.error)
    sentence = sentence_of(report)
    shown = None if facts is None or facts.run.withholds else facts
    mistakes = _mistakes(error) if isinstance(error, SpecError) and shown is not None else []
    contract = None if facts is None else facts.contract
    return CiReport(
        pipeline=report.pipeline,
        run_id=report.run_id,
        verdict=report.verdict,
        exit_code=report.exit_code,
        cause="" if error is None else error.cause,
        sentence=sentence,
        cases=(
            *mistakes,
            *_stages(report.stages, sentence, {} if shown is None else _in_numbers(shown)),
            *([] if facts is None else _found(facts)),
        ),
        suite="" if contract is None else contract.suite_digest,
        # With another verdict, a report names the version that the alias still names.
        model=report.model if report.verdict in ("promoted", "canary", "unchanged") else None,
        metrics=report.metrics,
        cost=report.cost,
        commit=report.commit,
        dirty=report.dirty,
    )


def _found(facts: Facts) -> Iterator[CiCase]:
    """The cases of what the run's stages checked."""
    if facts.contract is not None:
        yield from _numbered(_expectations(facts, facts.contract))
    yield from _numbered(_gates(facts.gates, facts.run.spec.promote.gates))


def report_of_error(error: TrainwrightError, pipeline: str) -> CiReport:
    """The CI report of what ended without a report of its run, or before there was one.

    Mistakes in the spec or the command keep their text, and so do errors about a flow run: they say nothing of data.
    """
    cause = error.cause.replace("_", " ")
    sentence = f"It ended before there was a run: {cause} (exit code {error.exit_code})."
    if "flow_run" in error.details or isinstance(error, UsageError):
        sentence = str(error)
    elif isinstance(error, Cancelled) or type(error) is TrainwrightError:
        sentence = _WITHOUT_RUN[type(error)]
    return CiReport(
        pipeline=pipeline,
        run_id=error.details.get("run_id", "") if "flow_run" in error.details else "",
        verdict=VERDICTS.get(error.exit_code, "failed"),
        exit_code=error.exit_code,
        cause=error.cause,
        sentence=sentence,
        cases=tuple(_mistakes(error)) if isinstance(error, SpecError) else (),
    )


def _mistakes(error: TrainwrightError) -> list[CiCase]:
    """A case for each line of a spec's error: it begins with the place, or names a field alone."""
    cases = []
    for line in error.message.splitlines():
        placed = _PLACED.fullmatch(line)
        sentence = placed["sentence"] if placed else line
        place = placed["place"] if placed else ""
        cases.append(CiCase(kind="spec", name=place or "spec", status="failed", sentence=sentence, place=place))
    return list(_numbered(cases))


def _in_numbers(facts: Facts) -> dict[str, str]:
    """What stages did, by their name. Their own sentences may quote a row, even of accepted data, or a person."""
    said: dict[str, str] = {}
    if (contract := facts.contract) is not None:
        aside = f", {contract.quarantine.rows:,} of them set aside" if contract.quarantine is not None else ""
        said["validate"] = f"{contract.rows:,} rows{aside}; {contract.met} of {contract.expectations} expectations met"
    if (dataset := facts.dataset) is not None:
        said["shard"] = ", ".join(f"{split} {dataset.rows(split):,} rows" for split in dataset.splits)
    if facts.checkpoint is not None:
        said["train"] = f"step {facts.checkpoint.step:,}"
    return said


def _stages(stages: Sequence[StageResult], failure: str, sentences: Mapping[str, str]) -> Iterator[CiCase]:
    """Each stage of the line, in order.

    Args:
        failure: why the run failed.
        sentences: what a stage did that did not fail, by its name.
    """
    ended = {stage.name: stage for stage in stages}
    for name, section in SECTIONS.items():
        stage = ended.get(name)
        if stage is None:
            yield CiCase(kind="stage", name=name, status="skipped", sentence="The run did not get so far.")
            continue
        status = _STAGES.get(stage.status, "failed")
        done = sentences.get(name, "")
        sentence = failure if status == "failed" else f"{stage.status}{': ' * bool(done)}{done}"
        yield CiCase(kind="stage", name=name, status=status, sentence=sentence, seconds=stage.seconds, field=(section,))


def _expectations(facts: Facts, contract: ContractReport) -> Iterator[CiCase]:
    spec = facts.run.spec.contract
    mildest = SEVERITIES.index(spec.fail_on) if spec is not None and not contract.accepted else len(SEVERITIES)
    # By identity: a comparison of each with each takes minutes for ten thousand expectations.
    aside = {id(one) for one in (contract.quarantine.broken if contract.quarantine is not None else [])}
    results = tried(lambda: report_results(facts.run, contract) or [])
    for index, result in enumerate(results or ()):
        failure = result.failure
        status: CaseStatus = "passed" if failure is None and not result.unclear else "warned"
        if failure is not None and id(failure) not in aside and SEVERITIES.index(failure.severity) >= mildest:
            status = "failed"
        sentence = _broken(result, set_aside=id(failure) in aside) if status != "passed" else ""
        yield CiCase(
            kind="expectation", name=result.text, status=status, sentence=sentence, field=("contract",), entry=index
        )


def _broken(result: Result, *, set_aside: bool) -> str:
    """How an expectation is broken, in numbers: neither values nor rows."""
    failure = result.failure
    if failure is None:
        return f"{result.verdict}."
    of = f" of {failure.of:,}" if failure.rows and failure.of else ""
    rows = f"broken by {failure.rows:,}{of} rows" if failure.rows else "broken"
    return f"{failure.severity}: {rows}{', which were set aside' if set_aside else ''}."


def _gates(results: Sequence[GateResult], specs: Sequence[GateSpec]) -> Iterator[CiCase]:
    """Each gate with what it found, in the order of the spec; gates that were not computed are skipped."""
    left = list(results)
    for index, gate in enumerate(specs):
        result = next((one for one in left if _is_of(one, gate)), None)
        case = CiCase(kind="gate", name=_name(gate), status="skipped", field=("promote", "gates", index))
        if result is None:
            yield case.model_copy(update={"sentence": "It was not computed."})
            continue
        left.remove(result)
        yield case.model_copy(update={"status": _met(result), "sentence": result.sentence})
    for result in left:
        name = f"{result.metric}{f' on {result.slice}' if result.slice else ''}"
        yield CiCase(kind="gate", name=name, status=_met(result), sentence=result.sentence, field=("promote",))


def _met(result: GateResult) -> CaseStatus:
    if result.skipped:
        return "skipped"
    return "passed" if result.met else "failed"


def _is_of(result: GateResult, gate: GateSpec) -> bool:
    return (result.metric, result.slice, result.bound) == (gate.name, gate.slice or "", gate.threshold)


def _name(gate: GateSpec) -> str:
    asks = next(name for name in _ASKED if getattr(gate, name) is not None)
    return f"{gate.name}{f' on {gate.slice}' if gate.slice else ''}: {asks} {gate.threshold:g}"


def _numbered(cases: Sequence[CiCase] | Iterator[CiCase]) -> Iterator[CiCase]:
    """The cases with names that differ: viewers of JUnit keep one case of a name."""
    taken: dict[str, int] = {}
    for case in cases:
        name = case.name
        while name in taken:
            taken[case.name] += 1
            name = f"{case.name} ({taken[case.name]})"
        taken[name] = 1
        yield case if name == case.name else case.model_copy(update={"name": name})


@dataclass(frozen=True)
class Finding:
    """Something to mark on a line of a file.

    Attributes:
        file: path from the checkout's root; "" if it is not in the checkout.
        line: from 1.
    """

    level: Level
    title: str
    sentence: str
    file: str = ""
    line: int = 1


@dataclass(frozen=True)
class SpecFiles:
    """The spec and its suite as this checkout has them.

    Attributes:
        root: the checkout's root.
        spec: the spec's file.
        document: its content; None if it cannot be read.
        suite: the suite's file and its content; None if the spec names none, or it cannot be read.
        suite_digest: of the suite; "" if it cannot be read.
    """

    root: Path
    spec: Path
    document: Document | None = None
    suite: tuple[Path, Document] | None = None
    suite_digest: str = ""

    def find(self, case: CiCase, suite: str) -> tuple[str, int]:
        """File and line of a case; ("", 1) if it does not stand in the checkout.

        Args:
            suite: digest of the suite that the case's `entry` is of.
        """
        if case.place:
            return self._named(case.place)
        field: FieldPath = case.field
        if case.entry is not None and suite and suite == self.suite_digest:
            entry: FieldPath = ("expectations", case.entry)
            if self.suite is not None:
                return self._at(*self.suite, entry)
            field = ("contract", "suite", *entry)
        return ("", 1) if self.document is None else self._at(self.spec, self.document, field)

    def _at(self, path: Path, document: Document, field: FieldPath) -> tuple[str, int]:
        found = _LINE.fullmatch(document.place(field))
        return self._inside(path), int(found["line"]) if found else 1

    def _named(self, place: str) -> tuple[str, int]:
        """A `file:line` of an error's message: the file is named from here or from the spec's folder."""
        found = _LINE.fullmatch(place)
        if found is None:
            return "", 1
        for folder in (Path.cwd(), self.spec.parent):
            with contextlib.suppress(OSError):  # such as a name that is too long
                if (path := folder / found["file"]).is_file() and (inside := self._inside(path)):
                    return inside, int(found["line"])
        return "", 1

    def _inside(self, path: Path) -> str:
        path = path.resolve()
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else ""


def checkout_root(spec: Path, environment: Mapping[str, str]) -> Path:
    """The root of the checkout: as the host names it, else the nearest folder with `.git`, else the current folder."""
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        named = Path(environment.get(name) or "/nowhere").resolve()
        if named.is_dir() and spec.is_relative_to(named):
            return named
    return next((folder for folder in spec.parents if (folder / ".git").exists()), Path.cwd())


def spec_files(spec: Path, root: Path, overrides: Sequence[str] = ()) -> SpecFiles:
    """The spec's files; what cannot be read is missing."""
    try:
        document = read_document(spec, "a pipeline spec", "name a spec")
    except SpecError:
        return SpecFiles(root, spec)
    try:
        loaded = load_spec(spec, overrides)
    except SpecError:
        return SpecFiles(root, spec, document)
    return SpecFiles(root, spec, document, *_suite(loaded, spec.parent))


def _suite(spec: PipelineSpec, folder: Path) -> tuple[tuple[Path, Document] | None, str]:
    """The suite's file with its content, if it is a file; and the suite's digest."""
    contract = spec.contract
    if contract is None:
        return None, ""
    try:
        digest = suite_digest(load_suite(contract.suite, folder, contract.parameters))
        if not isinstance(contract.suite, str):
            return None, digest
        return (folder / contract.suite, read_document(folder / contract.suite, "a suite", "write it")), digest
    except SpecError:
        return None, ""


def findings(report: CiReport, files: SpecFiles, notes: Sequence[str] = ()) -> list[Finding]:
    """What CI should mark: what failed before what is only warned of, causes before consequences.

    Args:
        notes: sentences for the reader of this job, which are warnings.
    """
    marked = [case for case in report.cases if case.status in ("failed", "warned")]
    if any(case.kind != "stage" for case in marked if case.status == "failed"):
        # The stage failed because of them.
        marked = [case for case in marked if case.kind != "stage"]
    marked.sort(key=lambda case: (case.status != "failed", _ORDER.index(case.kind)))
    found = [_finding(report, files, case) for case in marked]
    if report.exit_code and not any(one.level == "error" for one in found):
        level: Level = "notice" if report.verdict == "waiting" else "error"
        file, line = files.find(CiCase(kind="spec", name="", status="failed"), "")
        found.insert(0, Finding(level, report.verdict.replace("_", " "), one_line(report.sentence), file, line))
    return [*found, *(Finding("warning", one_line(report.pipeline, 200), one_line(note)) for note in notes)]


def _finding(report: CiReport, files: SpecFiles, case: CiCase) -> Finding:
    file, line = files.find(case, report.suite)
    level: Level = "error" if case.status == "failed" else "warning"
    title = one_line(f"{case.kind} {'failed' if level == 'error' else 'does not hold'}", 200)
    named = "" if case.kind == "spec" else f"{case.name}: "
    return Finding(level, title, one_line(f"{named}{case.sentence}", 2000), file, line)


def junit(report: CiReport) -> str:
    """The report as JUnit XML. A case that is only warned of has passed; its sentence is its output.

    A run that did not end well and has no failed case gets one, the run itself; an error if it is a bug of ours.
    """
    root = ET.Element(
        "testsuites", name=escaped(f"trainwright {report.pipeline}"), tests="0", failures="0", errors="0", skipped="0"
    )
    cases = list(report.cases)
    for kind, suite_name in _JUNIT_SUITES.items():
        if mine := [case for case in cases if case.kind == kind]:
            _junit_suite(root, f"{report.pipeline}.{suite_name}", mine)
    if report.exit_code and not any(case.status == "failed" for case in cases):
        case = CiCase(kind="stage", name="run", status="failed", sentence=report.sentence)
        _junit_suite(root, report.pipeline, [case], "error" if report.cause == TrainwrightError.cause else "failure")
    for suite in root:
        for count in ("tests", "failures", "errors", "skipped"):
            root.set(count, str(int(root.attrib[count]) + int(suite.attrib[count])))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _junit_suite(root: ET.Element, name: str, cases: Sequence[CiCase], wrong: str = "failure") -> None:
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
    lines += _summary_facts(report)
    for kind, head in _SUMMARY_HEADS.items():
        if cases := [case for case in report.cases if case.kind == kind]:
            lines += ["", f"### {head}", "", *_summary_table(cases)]
    return cut("\n".join(lines) + "\n", most_bytes)


def cut(page: str, most_bytes: int) -> str:
    """The page, cut at the end of a line and with a sentence that says so if it is too large; "" if nothing fits."""
    content = page.encode()
    if len(content) <= most_bytes:
        return page
    room = most_bytes - len(_CUT.encode())
    if room <= 0:
        return ""
    return content[:room].rpartition(b"\n")[0].decode() + _CUT


def _summary_facts(report: CiReport) -> list[str]:
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


def _summary_table(cases: Sequence[CiCase]) -> list[str]:
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


def _at_most(findings: list[Finding], level: Level) -> list[Finding]:
    if len(findings) <= MOST_ANNOTATIONS:
        return findings
    kept = findings[: MOST_ANNOTATIONS - 1]
    more = len(findings) - len(kept)
    return [*kept, Finding(level, f"{more} more", f"{more} more are not shown here; the step's summary lists all.")]


def _command(finding: Finding) -> str:
    properties = {"file": finding.file, "line": str(finding.line)} if finding.file else {}
    properties["title"] = finding.title
    listed = ",".join(
        f"{name}={_data(value).replace(':', '%3A').replace(',', '%2C')}" for name, value in properties.items()
    )
    return f"::{finding.level} {listed}::{_data(finding.sentence)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def github_outputs(values: Mapping[str, str]) -> str:
    """Lines for the file `GITHUB_OUTPUT`; each value must be a single line."""
    for value in values.values():
        assert "\n" not in value, "a value of several lines could set other outputs"
        assert "\r" not in value
    return "".join(f"{name}={value}\n" for name, value in values.items())


def dotenv(values: Mapping[str, str]) -> str:
    """The outputs as variables `TRAINWRIGHT_<NAME>`; metrics that would make the report too large are left out."""
    lines = {name: f"TRAINWRIGHT_{name.upper()}={value}\n" for name, value in values.items()}
    if sum(len(line.encode()) for line in lines.values()) > MOST_DOTENV_BYTES:
        lines["metrics"] = "TRAINWRIGHT_METRICS={}\n"
    return "".join(lines.values())
