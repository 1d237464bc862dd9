"""Findings: the lines of the spec and the suite that CI marks, and in which order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_contracts.run_report import CiCase
from tasks.ci import SpecFiles, checkout_root, findings, spec_files
from tests.support.ci_reports import case, promoted, report
from tests.support.tiny import SUITE, write_project


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the tiny project in a folder of it; its suite has a line for each entry."""
    root = tmp_path_factory.mktemp("checkout").resolve()
    folder = write_project(root / "models").parent
    lines = ",\n".join(json.dumps(entry) for entry in SUITE["expectations"])
    (folder / "suite.json").write_text(f'{{"name": "tiny", "expectations": [\n{lines}\n]}}')
    return root


@pytest.fixture(scope="module")
def files(root: Path) -> SpecFiles:
    return spec_files(root / "models/pipeline.yaml", root)


@pytest.mark.parametrize(
    ("marked", "file", "text", "suite"),
    [
        (case(field=("promote", "gates", 1)), "models/pipeline.yaml", "metric: accuracy", None),
        (case("stage", field=("train",)), "models/pipeline.yaml", "train:", None),
        (case("expectation", field=("contract",), entry=2), "models/suite.json", "not_be_null", None),
        (case("expectation", field=("contract",), entry=2), "models/pipeline.yaml", "contract:", "0" * 64),
        (case("spec", place="pipeline.yaml:3"), "models/pipeline.yaml", "tags:", None),
        (case("stage", field=("nothing", "such")), "models/pipeline.yaml", "version: 1", None),
    ],
)
def test_a_case_is_marked_where_the_spec_or_the_suite_asks_for_it(
    marked: CiCase, file: str, text: str, suite: str | None, root: Path, files: SpecFiles
) -> None:
    """An expectation of another suite than the spec's is marked at the contract."""
    (found,) = findings(report(marked, suite=suite or files.suite_digest), files)
    path = root / file
    assert (found.level, found.file) == ("error", file)
    assert text in path.read_text().splitlines()[found.line - 1]


@pytest.mark.parametrize(
    "place", ["/etc/passwd:1", "../../secret.yaml:3", "nowhere.yaml:1", "no place", f"{'a' * 5000}:1"]
)
def test_a_place_outside_of_the_checkout_is_not_named(place: str, files: SpecFiles, root: Path) -> None:
    (root.parent / "secret.yaml").write_text("a: 1\n" * 5)
    assert [one.file for one in findings(report(case("spec", place=place)), files)] == [""]


def test_the_title_of_a_note_is_one_line_of_visible_characters(files: SpecFiles) -> None:
    *_, note = findings(report(pipeline="a\n\x1b \u2028b"), files, ["a note"])
    assert (note.title, note.sentence) == ("a \\x1b \\u2028b", "a note")


def test_errors_and_causes_come_first_and_notes_last(files: SpecFiles) -> None:
    cases = [
        case("stage", name="promote"),
        case("expectation", "warned", name="b"),
        case("checkpoint", name="step 3"),
        case("gate", name="loss: max 1"),
        case("spec", name="spec"),
        case("gate", "passed", name="fine"),
    ]
    assert [(one.level, one.title) for one in findings(report(*cases), files, ["a note"])] == [
        ("error", "spec failed"),
        ("error", "gate failed"),
        ("error", "checkpoint failed"),
        ("warning", "expectation does not hold"),
        ("warning", "tiny"),
    ]


def test_a_run_that_failed_is_marked_and_one_that_waits_is_a_notice(files: SpecFiles, root: Path) -> None:
    failed = report(verdict="failed", exit_code=8, sentence="The run failed in train: out of memory (exit code 8).")
    assert [(one.level, one.title) for one in findings(failed, files)] == [("error", "failed")]
    waits = report(verdict="waiting", exit_code=9, sentence="A person must decide.")
    assert [(one.level, one.title) for one in findings(waits, files)] == [("notice", "waiting")]
    assert findings(promoted(case(status="passed")), files) == []
    assert [one.file for one in findings(failed, SpecFiles(root, root / "gone.yaml"))] == [""]


@pytest.mark.parametrize(
    ("variable", "git", "expected"),
    [("GITHUB_WORKSPACE", True, "."), ("CI_PROJECT_DIR", False, "."), ("", True, "models"), ("", False, None)],
)
def test_the_checkout_is_what_the_host_says_or_the_nearest_repository(
    variable: str, git: bool, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.resolve() / "work/models"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    if git:
        (folder / ".git").mkdir()
    environment = {variable: str(folder.parent)} if variable else {"GITHUB_WORKSPACE": str(tmp_path / "other")}
    root = checkout_root(folder / "pipeline.yaml", environment)
    assert root == (tmp_path if expected is None else folder.parent / expected).resolve()


@pytest.mark.parametrize("spec", ["", "version: 1\nname: [", "version: 1\nname: x\nsead: 3\n"])
def test_a_spec_that_cannot_be_loaded_has_the_lines_that_can_be_read(spec: str, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(spec)
    found = spec_files(path, tmp_path)
    assert (found.document is not None, found.suite, found.suite_digest) == ("sead" in spec, None, "")
