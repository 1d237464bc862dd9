"""Finds where in the spec and its suite the cases of a report stand that CI should mark, the most important first."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_contracts.contract.suites import load_suite, suite_digest
from data_contracts.errors import SpecError
from data_contracts.load import load_spec
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.quoting import one_line
from data_contracts.run_report import CiCase, CiReport
from data_contracts.yaml_text import Document, FieldPath, read_document

Level = Literal["error", "warning", "notice"]

_ORDER = ("spec", "gate", "expectation", "checkpoint", "stage")
_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")


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
