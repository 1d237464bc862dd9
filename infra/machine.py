"""This machine: its boot, processors, memory, and how many GPUs it has.

The machine's id is one that all its processes find, and that tells nothing about it. Processors and memory are those
of the machine, or of this process's control groups if these allow less. GPUs are counted as the kernel lists them,
without torch and without a driver's library. Every child imports this module, so it imports little.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_GROUPS, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def num_gpus(root: Path = Path("/")) -> int | None:
    """The number of NVIDIA GPUs; 0 without any accelerator; None where another maker's may be there."""
    try:
        return len(list((root / "proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        others = [
            *root.glob("dev/kfd"),
            *root.glob("dev/accel*"),
            *root.glob("dev/davinci*"),
            *root.glob("dev/nvidia*"),
        ]
        return None if others else 0


def boot_id() -> str:
    """The id of this machine's boot; "" if the kernel gives none."""
    return _text(_BOOT).strip()


@functools.cache
def machine_id() -> str:
    """16 hexadecimal digits, equal for all processes of this machine until it restarts; "" if it has none.

    A container with a host name of its own counts as a machine of its own, as it has in a price list.
    """
    boot = boot_id()
    return hashlib.sha256(f"{boot}\0{platform.node()}".encode()).hexdigest()[:16] if boot else ""


def num_cores(groups: Path = _GROUPS, root: Path = _ROOT) -> int:
    """The processors that this process may use: those of its affinity, or its control groups' quota if that is less.

    Args:
        groups: lists the process's groups; version 1 of the kernel's interface has one for each resource.
        root: where the groups are folders.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _group_folders("cpu", groups, root):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        quota = quota or _text(folder / "cpu.cfs_quota_us").strip()
        period = period or _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and int(quota) > 0:
            cores = min(cores, -(-int(quota) // int(period)))
    return max(1, cores)


def threads_per_process(processes: int) -> int:
    """OMP_NUM_THREADS for each of some processes that share this machine's processors; at least 1."""
    return max(1, num_cores() // max(1, processes))


def group_limit_bytes(groups: Path = _GROUPS, root: Path = _ROOT) -> int | None:
    """The least memory limit of this process's group and those above it; None if there is none, or no such group.

    Args:
        groups, root: as for `num_cores`.
    """
    names = ("memory.max", "memory.limit_in_bytes")
    folders = _group_folders("memory", groups, root)
    limits = [_text(folder / name).strip() for folder in folders for name in names]
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)


def _group_folders(resource: str, groups: Path, root: Path) -> Iterator[Path]:
    """The folders of this process's control groups of a resource, and of the groups above them."""
    for line in _text(groups).splitlines():
        _, resources, path = line.split(":", 2)
        if resources and resource not in resources.split(","):
            continue
        top = root / resource if resources else root
        folder = top / path.lstrip("/")
        # In a container, the group's own path may not be there; its limit is that of the top.
        yield from (above for above in (folder, *folder.parents) if above == top or top in above.parents)


def machine_bytes() -> int:
    """The memory of this machine, or the limit of this process's control group if that is less."""
    machine = psutil.virtual_memory().total
    return min(machine, group_limit_bytes() or machine)


def free_bytes() -> int:
    """The memory of this machine that is free, or the limit of this process's control group if that is less."""
    free = psutil.virtual_memory().available
    return min(free, group_limit_bytes() or free)


def tree_bytes(pid: int) -> int:
    """The memory of a process and of all that descend from it, without mapped files; 0 where Linux does not say."""
    pages, waiting = 0, [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        resident, shared = ([int(count) for count in _text(process / "statm").split()] or [0] * 3)[1:3]
        pages += resident - shared
        for children in process.glob("task/*/children"):
            waiting += map(int, _text(children).split())
    return pages * os.sysconf("SC_PAGE_SIZE")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
