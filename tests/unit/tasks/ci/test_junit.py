"""JUnit XML: a case for each thing that was checked, and texts that stay texts."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tasks.ci import junit
from tests.support.ci_reports import HOSTILE, case, promoted, report

CASES = [
    case("stage", "passed", "validate", seconds=0.5, sentence="ran: 600 rows"),
    case("stage", "skipped", "promote", sentence="The run did not get so far."),
    case("expectation", "warned", "b has a value", sentence="warning: broken by 1 of 600 rows."),
    case("gate", "failed"),
]


def test_each_kind_is_a_suite_and_each_case_has_its_end() -> None:
    root = ET.fromstring(junit(report(*CASES)))
    assert root.attrib == {"name": "trainwright tiny", "tests": "4", "failures": "1", "errors": "0", "skipped": "1"}
    assert [suite.get("name") for suite in root] == ["tiny.stages", "tiny.contract", "tiny.gates"]
    ends = {
        made.get("name"): [(one.tag, one.get("message"), one.text) for one in made] for made in root.iter("testcase")
    }
    assert ends == {
        "validate": [("system-out", None, "ran: 600 rows")],
        "promote": [("skipped", "The run did not get so far.", None)],
        "b has a value": [("system-out", None, "warning: broken by 1 of 600 rows.")],
        "accuracy: min 0.9": [("failure", "it is 0.5", "it is 0.5")],
    }
    assert root[0].get("time") == "0.500"


@pytest.mark.parametrize(
    ("made", "failures"),
    [(report(), 1), (report(case(status="warned")), 1), (promoted(), 0), (report(case()), 1)],
)
def test_a_run_that_failed_is_never_green(made: object, failures: int) -> None:
    assert ET.fromstring(junit(made)).get("failures") == str(failures)  # type: ignore[arg-type]


def test_no_text_becomes_markup_or_breaks_the_file() -> None:
    root = ET.fromstring(junit(report(case(name=HOSTILE, sentence=f"{HOSTILE}\x00\ufffe"))).encode())
    (made,) = root.iter("testcase")
    assert [one.tag for one in root.iter()] == ["testsuites", "testsuite", "testcase", "failure"]
    assert "<img src=x onerror=y>" in str(made.get("name"))
    assert "\x00" not in str(made[0].text)
