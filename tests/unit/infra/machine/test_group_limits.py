"""The least limit of the groups that a process is in counts, in both versions of the kernel's interface."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.machine import free_bytes, group_limit_bytes, machine_bytes, num_cores, threads_per_process
from tests.support.files import write_files

V1_QUOTA = {"cpu/a/cpu.cfs_quota_us": "150000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "700\n"}, 700),
        ("0::/a/b\n", {"a/b/memory.max": "500\n", "a/memory.max": "700\n"}, 500),
        ("0::/a\n", {"a/memory.max": "max\n"}, None),
        ("3:memory:/a\n2:cpu:/x\n0::/\n", {"memory/a/memory.limit_in_bytes": "600\n"}, 600),
        ("3:memory:/not/there\n", {"memory/memory.limit_in_bytes": "800\n"}, 800),
        ("", {}, None),
    ],
)
def test_the_least_limit_of_memory(groups: str, files: dict[str, str], limit: int | None, tmp_path: Path) -> None:
    root = write_files(tmp_path, {"groups": groups, **files})
    assert group_limit_bytes(root / "groups", root) == limit


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 3),
        ("0::/a\n", {"a/cpu.max": "20000 100000\n"}, 1),
        ("4:cpu,cpuacct:/a\n", V1_QUOTA, 2),
        ("4:cpu:/a\n0::/\n", V1_QUOTA, 2),
        ("4:cpu:/a\n", {**V1_QUOTA, "cpu/a/cpu.cfs_quota_us": "-1\n"}, 8),
        ("", {}, 8),
    ],
)
def test_the_processors_that_a_process_may_use(
    groups: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    root = write_files(tmp_path, {"groups": groups, **files})
    assert num_cores(root / "groups", root) == cores


@pytest.mark.parametrize(("cores", "processes", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_processors_are_shared(cores: int, processes: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.machine.num_cores", lambda: cores)
    assert threads_per_process(processes) == threads
    assert 0 < free_bytes() <= machine_bytes()
