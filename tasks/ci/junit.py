"""Writes a CI report as JUnit XML: a test suite for each kind of case."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from data_contracts.errors import TrainwrightError
from data_contracts.quoting import escaped
from data_contracts.run_report import CiCase, CiReport

_TITLES = {
    "spec": "spec",
    "stage": "stages",
    "expectation": "contract",
    "checkpoint": "checkpoints",
    "gate": "gates",
}


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
