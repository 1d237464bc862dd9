"""Faults that a rewrite might bring are found: each is put into a copy of the tree, and one of its tests must fail.

`tests/golden/faults.toml` lists them. The default run tries ten, `pytest --sweep` all.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.faults import Fault, copy_tree, find_fault, named_tests, read_faults, run_tests, with_fault

FAULTS = read_faults()
AREAS = {"store", "leases", "order", "conductor", "contract", "gates", "promote", "bundle"}
SWEPT = [pytest.param(one, marks=[] if one.default else [pytest.mark.sweep], id=str(one)) for one in FAULTS]


@pytest.fixture(scope="module")
def copied(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the tree, into which one fault after another is put."""
    copy = tmp_path_factory.mktemp("faults")
    copy_tree(repository, copy)
    yield copy
    shutil.rmtree(copy)


def test_sixty_faults_in_all_areas_ten_of_them_in_the_default_run() -> None:
    assert len(FAULTS) == 60
    assert min(Counter(fault.area for fault in FAULTS).values()) >= 7
    assert {fault.area for fault in FAULTS if fault.default} == AREAS
    assert sum(fault.default for fault in FAULTS) == 10


def test_each_fault_has_one_place_and_its_tests_exist(repository: Path) -> None:
    outdated = []
    for fault in FAULTS:
        try:
            with_fault(repository, fault)
            named_tests(repository, fault)
        except ValueError as error:
            outdated.append(str(error))
    assert not outdated, "\n".join(outdated)


@pytest.mark.parametrize("fault", SWEPT)
def test_a_fault_is_found(fault: Fault, copied: Path, tmp_path: Path) -> None:
    found, printed = find_fault(copied, fault, tmp_path)
    assert found, f"{', '.join(fault.tests)} did not fail with {fault.by!r} in {fault.function}:\n{printed}"


@pytest.mark.sweep
def test_the_named_tests_pass_without_a_fault(copied: Path, tmp_path: Path) -> None:
    done = run_tests(copied, sorted({test for fault in FAULTS for test in named_tests(copied, fault)}), tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.sweep
@pytest.mark.parametrize("by", ["current.value['token'] + 1 + 0", "unknown + 1", "current.token + 1", "_value() + 1"])
def test_what_changes_nothing_or_cannot_run_counts_as_not_found(by: str, copied: Path, tmp_path: Path) -> None:
    fault = next(one for one in FAULTS if one.replace == 'current.value["token"] + 1')
    assert not find_fault(copied, replace(fault, by=by), tmp_path)[0]
