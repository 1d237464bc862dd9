"""Sources much larger than memory are sharded under a limit that the kernel enforces; figures with `pytest -s`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROW_BYTES = 8 + 19 * 4
MIB = 2**20


@contextlib.contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup (version 1 or 2) whose processes are killed above the limit."""
    root = Path("/sys/fs/cgroup")
    old = root / "memory"
    folder = (old if old.is_dir() else root) / f"trainwright-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")).write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here ({error})")
    try:
        yield folder
    finally:
        # The kernel may need a moment to see that the last process is gone.
        deadline = time.monotonic() + 60
        while folder.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                folder.rmdir()


def generate(folder: Path, total_bytes: int) -> int:
    """Parquet files of 160 MB with rows of a key and 19 floats; how many rows."""
    folder.mkdir()
    schema = pa.schema([("id", pa.int64()), *((f"x{n}", pa.float32()) for n in range(19))])
    draw = np.random.default_rng(0)
    rows, group = total_bytes // ROW_BYTES, 250_000
    for number, first in enumerate(range(0, rows, 8 * group)):
        path = folder / f"{number:04d}.parquet"
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for start in range(first, min(first + 8 * group, rows), group):
                size = min(group, rows - start)
                floats = [pa.array(draw.random(size, np.float32)) for _ in range(19)]
                writer.write_table(pa.table([pa.array(np.arange(start, start + size)), *floats], schema=schema))
    return rows


@pytest.mark.root
@pytest.mark.parametrize(
    ("total_bytes", "limit_bytes", "memory_bytes"),
    [
        pytest.param(10**9, 512 * MIB, 192 * MIB, id="1 GB", marks=pytest.mark.slow),
        pytest.param(2 * 10**9, 512 * MIB, 192 * MIB, id="2 GB", marks=pytest.mark.sweep),
        pytest.param(20 * 10**9, 1024 * MIB, 384 * MIB, id="20 GB", marks=pytest.mark.huge),
    ],
)
@pytest.mark.timeout(3600)
def test_a_source_of_any_size_goes_through_little_memory(
    total_bytes: int, limit_bytes: int, memory_bytes: int, tmp_path: Path, repository: Path
) -> None:
    rows = generate(tmp_path / "raw", total_bytes)
    shards = json.dumps({"split": {"key": "id"}, "memory_bytes": memory_bytes})
    raw, store = str(tmp_path / "raw"), str(tmp_path / "store")
    with memory_limit(limit_bytes) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.bounded", raw, store, shards],
            cwd=repository, env={**os.environ, "MEMORY_CGROUP": str(folder), "TMPDIR": str(tmp_path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{total_bytes / 1e9:g} GB under {limit_bytes // MIB} MiB: {result}")
    assert result["rows"] == rows
    assert result["pss_mib"] * MIB < limit_bytes
