"""The least limit of the groups that a process is in, in both versions of the kernel's interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.machine import group_limit_bytes


def _written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


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
def test_the_least_limit_counts(groups: str, files: dict[str, str], limit: int | None, tmp_path: Path) -> None:
    root = _written(tmp_path, {"groups": groups, **files})
    assert group_limit_bytes(root / "groups", root) == limit


def test_this_process_has_a_limit_or_none() -> None:
    limit = group_limit_bytes()
    assert limit is None or limit > 0
