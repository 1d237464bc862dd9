"""Faults that a rewrite might bring are found: each is put into a copy of the tree, and one of its tests must fail.

`tests/golden/faults.toml` lists them. The default run tries one of each area, `pytest --sweep` all.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.faults import Fault, find_fault, find_tests, read_faults, run_tests
from tests.support.files import copy_tracked

FAULTS = read_faults()
AREAS = {"store", "leases", "order", "conductor", "contract", "gates", "promote", "bundle"}
TESTS = {test for fault in FAULTS for test in fault.tests}
SWEPT = [pytest.param(fault, marks=[] if fault.default else [pytest.mark.sweep], id=str(fault)) for fault in FAULTS]


@pytest.fixture(scope="module")
def copied(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the tree, into which one fault after another is put."""
    copy = tmp_path_factory.mktemp("faults")
    copy_tracked(repository, copy)
    yield copy
    shutil.rmtree(copy)


def test_sixty_faults_in_all_areas_one_of_each_in_the_default_run() -> None:
    assert len(FAULTS) == 60
    assert min(Counter(fault.area for fault in FAULTS).values()) >= 7
    assert sorted(fault.area for fault in FAULTS if fault.default) == sorted(AREAS)


def test_each_faults_old_text_occurs_once_in_its_file(repository: Path) -> None:
    outdated = []
    for fault in FAULTS:
        path = repository / fault.file
        times = path.read_text().count(fault.old) if path.exists() else 0
        if times != 1 or fault.old == fault.new:
            outdated.append(f"{fault}\n  its old text occurs {times} times in {fault.file}: {fault.old!r}")
    assert not outdated, "Bring up to date in faults.toml:\n" + "\n".join(outdated)


def test_each_faults_tests_exist_once(repository: Path) -> None:
    assert {name: ids for name, ids in find_tests(repository, TESTS).items() if len(ids) != 1} == {}


@pytest.mark.parametrize("fault", SWEPT)
def test_a_fault_is_found(fault: Fault, copied: Path, tmp_path: Path) -> None:
    found, printed = find_fault(copied, fault, tmp_path)
    assert found, f"{', '.join(fault.tests)} did not fail with {fault.new!r} in {fault.file}:\n{printed}"


@pytest.mark.sweep
def test_the_named_tests_pass_without_a_fault(copied: Path, tmp_path: Path) -> None:
    done = run_tests(copied, sorted(test for ids in find_tests(copied, TESTS).values() for test in ids), tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.sweep
@pytest.mark.parametrize(
    "new", ['current.value["token"] + 1 + 0', "unknown + 1", "current.token + 1", "_value() + 1", "+ +"]
)
def test_what_changes_nothing_or_cannot_run_counts_as_not_found(new: str, copied: Path, tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.old == 'current.value["token"] + 1')
    assert not find_fault(copied, replace(fault, new=new), tmp_path)[0]
