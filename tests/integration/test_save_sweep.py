"""A save or retention pass killed anywhere leaves a committed checkpoint, and no reader ever sees a part of one.

Figures with `pytest -s`; a sample runs by default, every call and request with `--sweep`.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.s3 import S3Server

Swept = tuple[dict[str, Any], dict[str, Any]]
SCENARIOS = [("save", 0), ("save", 1), ("retire", 0)]


def swept(repository: Path, *sweeps: dict[str, Any]) -> list[dict[str, Any]]:
    """What came of each, one after another in one process."""
    command = [sys.executable, "-m", "tests.support.save_sweep", *map(json.dumps, sweeps)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def has_come(sweep: dict[str, Any], found: dict[str, Any]) -> None:
    """Every kill that was tried came."""
    print(f"\n{sweep['what']}, rank {sweep['rank']}, {sweep['by']}: {found}")
    assert found["missed"] == []
    assert found["tried"] >= found["calls"] // sweep["step"]


@pytest.fixture(scope="module")
def by_calls(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Callable[[int], list[Swept]]:
    """Each scenario with every so many-eth call, carried out when it is first asked for."""

    @functools.cache
    def of(step: int) -> list[Swept]:
        stores = tmp_path_factory.mktemp("stores")
        sweeps: list[dict[str, Any]] = [
            {"store": str(stores / f"{what}-{rank}"), "options": {}, "what": what, "rank": rank, "by": "calls"}
            for what, rank in SCENARIOS
        ]
        asked = [{**sweep, "step": step} for sweep in sweeps]
        return list(zip(asked, swept(repository, *asked), strict=True))

    return of


@pytest.mark.apt("strace")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("what", "rank"), SCENARIOS)
@pytest.mark.parametrize("step", [pytest.param(1, id="all", marks=pytest.mark.sweep), pytest.param(22, id="sample")])
def test_killed_at_a_file_system_call(what: str, rank: int, step: int, by_calls: Callable[[int], list[Swept]]) -> None:
    has_come(*by_calls(step)[SCENARIOS.index((what, rank))])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("what", "rank"), [SCENARIOS[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in SCENARIOS[1:])]
)
@pytest.mark.parametrize("step", [pytest.param(1, id="all", marks=pytest.mark.sweep), pytest.param(18, id="sample")])
def test_killed_at_a_request_to_s3(what: str, rank: int, step: int, s3_server: S3Server, repository: Path) -> None:
    store = f"s3://{s3_server.bucket()}/stores"
    asked = {"store": store, "options": s3_server.options, "what": what, "rank": rank, "by": "requests", "step": step}
    [found] = swept(repository, asked)
    has_come(asked, found)
