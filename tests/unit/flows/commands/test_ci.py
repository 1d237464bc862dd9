"""`ci`: what it writes and where, whatever became of the run; the run itself is a stand-in here."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import pytest

from data_contracts.errors import Cancelled, SpecError, StorageUnavailable
from flows.cli import parser
from flows.commands import ci
from flows.commands.guard import Answer
from tests.support.ci_reports import HOSTILE, case, report
from tests.support.tiny import write_project


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny project as the checkout, and a step of GitHub's that has written something already."""
    path = write_project(tmp_path)
    (tmp_path / "step.md").write_text("before\n")
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_STEP_SUMMARY": "step.md",
        "GITHUB_OUTPUT": "output",
    }.items():
        monkeypatch.setenv(name, value)
    return path


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be done when the process ends."""
    registered: list[Any] = []
    monkeypatch.setattr(ci.atexit, "register", lambda *call: registered.append(call))
    return registered


def call(spec: Path, made: Any, monkeypatch: pytest.MonkeyPatch, *more: str) -> Answer:
    """Carry `ci` out with a run that ends as `made` says."""

    def ran(*_: Any) -> Any:
        if isinstance(made, BaseException):
            raise made
        return Answer("", {}, made.exit_code), made, ["a note"]

    monkeypatch.setattr(ci, "_here", ran)
    return ci.ci(parser().parse_args(["ci", str(spec), "--junit", "junit.xml", *more]))


def test_everything_is_written_and_nothing_in_the_log_is_a_command_but_ours(
    spec: Path, exits: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(spec, report(case(field=("promote", "gates", 1), sentence=HOSTILE)), monkeypatch).exit_code == 4
    folder = spec.parent
    assert (folder / "step.md").read_text().startswith("before\n## ❌ tiny: not promoted\n")
    assert "verdict=not_promoted\n" in (folder / "output").read_text()
    assert ET.parse(folder / "junit.xml").getroot().get("failures") == "1"
    stopped, started, error, warning, again = capsys.readouterr().err.splitlines()
    token = stopped.removeprefix("::stop-commands::")
    assert len(token) >= 16
    assert (started, again) == (f"::{token}::", stopped)
    assert error.startswith("::error file=pipeline.yaml,line=")
    assert warning == "::warning title=tiny::a note"
    ((_, lines),) = exits
    assert lines == [f"::{token}::"]


def test_a_named_summary_takes_the_place_of_the_step_s(
    spec: Path, exits: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call(spec, report(case()), monkeypatch, "--summary", "mine.md", "--dotenv", "vars.env")
    assert (spec.parent / "step.md").read_text() == "before\n"
    assert (spec.parent / "mine.md").read_text().startswith("## ❌ tiny")
    assert "TRAINWRIGHT_EXIT_CODE=4\n" in (spec.parent / "vars.env").read_text()


@pytest.mark.parametrize(
    ("stopped", "verdict", "code"),
    [
        (KeyboardInterrupt(), "cancelled", 130),
        (StorageUnavailable("away"), "failed", 5),
        (SpecError("pipeline.yaml:2: name: no"), "failed", 2),
        (Cancelled("The remote run owl was cancelled.", details={"flow_run": "x"}), "cancelled", 130),
    ],
)
def test_what_ends_early_is_written_too(
    stopped: BaseException,
    verdict: str,
    code: int,
    spec: Path,
    exits: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(type(stopped)):
        call(spec, stopped, monkeypatch)
    written = (spec.parent / "output").read_text()
    assert (f"verdict={verdict}\n" in written, f"exit_code={code}\n" in written) == (True, True)
    assert ET.parse(spec.parent / "junit.xml").getroot().get("failures") == "1"
    line = "file=pipeline.yaml,line=2,title=spec failed::name: no"
    assert (line in capsys.readouterr().err) == isinstance(stopped, SpecError)


class Panic(BaseException):
    """As a library in Rust raises it."""


@pytest.mark.parametrize("bug", [ValueError("row 7 is 4711"), Panic("row 7 is 4711")])
@pytest.mark.parametrize("where", ["run", "write"])
def test_a_bug_of_ours_leaves_one_error_case_and_no_text(
    where: str,
    bug: BaseException,
    spec: Path,
    exits: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if where == "write":
        monkeypatch.setattr(ci, "spec_files", Mock(side_effect=bug))
    with pytest.raises(type(bug)):
        call(spec, report() if where == "write" else bug, monkeypatch, "--dotenv", "vars.env")
    root = ET.parse(spec.parent / "junit.xml").getroot()
    assert (root.get("tests"), root.get("errors"), root.get("failures")) == ("1", "1", "0")
    assert [one.tag for one in root.iter("testcase") for one in one] == ["error"]
    assert "exit_code=1\n" in (spec.parent / "output").read_text()
    assert "internal error" in (spec.parent / "step.md").read_text()
    written = [(spec.parent / name).read_text() for name in ("junit.xml", "step.md", "vars.env", "output")]
    assert "4711" not in "".join([*written, capsys.readouterr().err])


def test_a_signal_that_a_library_turned_into_an_error_of_its_own_is_a_cancelled_job(
    spec: Path, exits: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ci.stopping, "received", [15])
    with pytest.raises(ValueError, match="torn"):
        call(spec, ValueError("torn"), monkeypatch)
    assert "verdict=cancelled\n" in (spec.parent / "output").read_text()


def test_a_run_of_another_pipeline_marks_no_line_of_this_spec(
    spec: Path, exits: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(spec, report(case(field=("promote", "gates", 1)), pipeline="other"), monkeypatch)
    assert "::error title=gate failed::" in capsys.readouterr().err


def test_without_a_host_the_log_has_no_commands(
    spec: Path, exits: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name)
    call(spec, report(case()), monkeypatch)
    assert (capsys.readouterr().err, exits) == ("", [])


def test_a_file_that_cannot_be_written_is_refused_before_the_run_or_warned_of_after_it(
    spec: Path, exits: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (spec.parent / "taken").mkdir()
    with pytest.raises(ci.UsageError, match="--dotenv: nowhere/x cannot be written"):
        call(spec, report(), monkeypatch, "--dotenv", "nowhere/x")
    assert call(spec, report(), monkeypatch, "--dotenv", "taken").exit_code == 4


def test_a_large_step_summary_gets_what_is_left(spec: Path, exits: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (spec.parent / "step.md").write_text("x" * (ci.MOST_BYTES - 300))
    call(spec, report(*[case(name=f"gate {n}") for n in range(100)]), monkeypatch)
    assert ci.MOST_BYTES - 300 < (spec.parent / "step.md").stat().st_size <= ci.MOST_BYTES


def test_a_remote_run_of_another_commit_or_pipeline_is_noted(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ci, "revision", lambda folder: ("f" * 40, False))
    assert [one.partition(",")[0] for one in ci._notes(report(pipeline="other"), "retrain/x", spec)] == [
        "The deployment retrain/x ran the pipeline other",
        "The remote run is of commit 0123456789ab",
    ]
    assert ci._notes(report(commit="f" * 40), "retrain/x", spec) == []


def test_no_server_is_one_sentence_and_starts_none(
    spec: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(ci, "ensure_server", lambda: pytest.fail("a server is started"))
    for name in [*ci.QUIET, ci.TRIGGER]:
        monkeypatch.setenv(name, "")
    with pytest.raises(StorageUnavailable, match=r"No Prefect server is known here .* Set PREFECT_API_URL"):
        ci._connect()
