"""How much memory this process may use, of its machine and its control group, and how much a process tree uses."""

from __future__ import annotations

import os
from pathlib import Path

_GROUPS, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def group_limit_bytes(groups: Path = _GROUPS, root: Path = _ROOT) -> int | None:
    """The least limit of this process's group and those above it; None if there is none, or no such group.

    Args:
        groups: lists the process's groups; version 1 of the kernel's interface has one for each resource.
        root: where the groups are folders.
    """
    limits: list[int] = []
    for line in _text(groups).splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if kinds else (root, "memory.max")
        folder = top / path.lstrip("/")
        # In a container, the group's own path may not be there; its limit is that of the top.
        while True:
            said = _text(folder / name).strip()
            limits += [int(said)] if said.isdigit() else []
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent
    return min(limits, default=None)


def machine_bytes() -> int:
    """The memory of this machine, or the limit of this process's control group if that is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, group_limit_bytes() or machine)


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
