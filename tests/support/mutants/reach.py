"""A plugin of pytest that writes down which test reaches which line: `pytest -p tests.support.mutants.reach`.

Environment: `MUTANTS_REACH`, a folder for the data of `coverage`; `MUTANTS_SOURCES`, patterns of the files. Processes
that a test starts are measured too, each under the test that was running. A test counts with its outcome and its
seconds, so that the trial of a mutant takes none that fails anyway, and the quick ones first.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest
from coverage.numbits import numbits_to_nums

RUNNING = "MUTANTS_TEST"
SETTINGS = """[run]
data_file = {folder}/data
parallel = true
sigterm = true
patch = _exit
concurrency = thread
context = ${{MUTANTS_TEST-none}}
include = {sources}
"""
_measured: coverage.Coverage | None = None
_tests: list[dict[str, Any]] = []


def pytest_configure() -> None:
    global _measured
    folder = Path(os.environ["MUTANTS_REACH"])
    settings = folder / "coveragerc"
    settings.write_text(SETTINGS.format(folder=folder, sources=os.environ["MUTANTS_SOURCES"]))
    os.environ[RUNNING] = "none"
    _measured = coverage.Coverage(config_file=str(settings), data_suffix=True)
    _measured.start()
    os.environ["COVERAGE_PROCESS_START"] = str(settings)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    assert _measured is not None
    name = f"t{len(_tests)}"
    one: dict[str, Any] = {"test": item.nodeid, "passed": True}
    _tests.append(one)
    os.environ[RUNNING] = name
    _measured.switch_context(name)
    began = time.monotonic()
    yield
    one["seconds"] = time.monotonic() - began
    os.environ[RUNNING] = "none"
    _measured.switch_context("between")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        _tests[-1]["passed"] = False


def pytest_unconfigure() -> None:
    assert _measured is not None
    _measured.stop()
    _measured.save()
    folder = Path(os.environ["MUTANTS_REACH"])
    (folder / "tests.json").write_text(json.dumps(_tests))
    (folder / "modules.json").write_text(json.dumps(list(sys.modules)))


def read(folder: Path, root: Path) -> list[dict[str, Any]]:
    """Each recorded test with `test`, `passed`, `seconds` and `lines`: file → the lines that it reaches."""
    tests: list[dict[str, Any]] = json.loads((folder / "tests.json").read_text())
    lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for path in folder.glob("data.*"):
        for context, file, numbits in _rows(path):
            name = context.split("|")[-1]
            lines[name][str(Path(file).relative_to(root))].update(numbits_to_nums(numbits))
    for number, one in enumerate(tests):
        one["lines"] = {file: sorted(found) for file, found in lines[f"t{number}"].items()}
    return tests


def _rows(path: Path) -> list[tuple[str, str, bytes]]:
    query = (
        "select context.context, file.path, line_bits.numbits from line_bits"
        " join context on context.id = line_bits.context_id join file on file.id = line_bits.file_id"
    )
    try:
        with sqlite3.connect(path) as connection:
            return connection.execute(query).fetchall()
    except sqlite3.DatabaseError:  # a process that was killed while it wrote
        return []
