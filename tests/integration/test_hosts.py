"""Gangs on hosts with addresses of their own, a worker in each: faults at random moments, and nothing is lost."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.soak import FAULTS, ROUNDED, soak

pytestmark = [pytest.mark.root, pytest.mark.apt("iproute2")]
SHORT = ["SIGKILL of a rank", "link cut", "SIGTERM of a node flow"]


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    """Root in a container may be forbidden them, which no package mends."""
    try:
        Hosts(1).close()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_faults_change_nothing(tmp_path: Path) -> None:
    outcomes = soak(tmp_path, SHORT, seed=1)
    assert [one.fault for one in outcomes if one.detected_s is not None] == SHORT


@pytest.mark.sweep
@pytest.mark.timeout(3 * 3600)
def test_every_fault_three_times_changes_nothing(tmp_path: Path) -> None:
    faults = [name for name in FAULTS if name != ROUNDED for _ in range(3)]
    random.Random(0).shuffle(faults)
    soak(tmp_path, faults, seed=2)


@pytest.mark.sweep
@pytest.mark.timeout(1800)
def test_memory_limits_change_the_micro_batch_alone(tmp_path: Path) -> None:
    outcomes = soak(tmp_path, [ROUNDED] * 3, seed=3)
    assert all(one.detected_s is not None for one in outcomes)
