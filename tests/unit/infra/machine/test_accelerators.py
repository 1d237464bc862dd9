"""GPUs are counted as the kernel lists them; what may be another maker's is unknown, not 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.machine import num_gpus


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([], 0),
        (["proc/driver/nvidia/gpus/0000:01:00.0", "proc/driver/nvidia/gpus/0000:02:00.0"], 2),
        (["proc/driver/nvidia/gpus"], 0),
        (["dev/kfd"], None),
        (["dev/nvidia0"], None),
    ],
)
def test_gpus_are_counted(there: list[str], expected: int | None, tmp_path: Path) -> None:
    for name in there:
        (tmp_path / name).mkdir(parents=True)
    assert num_gpus(tmp_path) == expected
