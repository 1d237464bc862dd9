"""The memory that a control group of Linux allows this process, which the machine's free memory does not show."""

from __future__ import annotations

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


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
