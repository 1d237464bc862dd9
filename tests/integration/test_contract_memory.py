"""A contract on many rows is checked under a limit that the kernel enforces; figures with `pytest -s`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.integration.test_shard_memory import MIB, memory_limit

PROGRAM = """
import json, os, resource, sys, time
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from data_contracts.contract.suites import load_suite
from data_contracts.messages.raw_data import ContractRequest
from infra.contract import contract_worker
from infra.files import file_digest
path = Path(sys.argv[2])
asked = [("values_to_be_unique", {"column": "id"}),
         ("unique_value_count_to_be_between", {"column": "name", "min_value": int(sys.argv[3])})]
entries = [{"type": f"expect_column_{name}", "kwargs": kwargs} for name, kwargs in asked]
file = {"uri": str(path), "bytes": path.stat().st_size, "blake3": file_digest(path), "format": "parquet"}
request = ContractRequest.from_json({
    "suite": load_suite({"name": "s", "expectations": entries}, path.parent), "files": [file],
    "sources": [{"uri": str(path)}], "root": str(path.parent), "window": None, "window_column": None,
    "fail_on": "info", "sensitive": []})
since = time.monotonic()
outcome = contract_worker.main(request, lambda report: None)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"accepted": outcome.accepted, "rows": outcome.rows, "seconds": round(time.monotonic() - since, 1),
    "rss_mib": used.ru_maxrss // 1024, "gx": "great_expectations" in sys.modules}))
"""


def generate(path: Path, rows: int) -> None:
    """A key in no order, and a text that is another in each row."""
    keys = np.random.default_rng(0).permutation(rows)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, rows, 500_000):
            some = pa.array(keys[start : start + 500_000])
            names = pc.binary_join_element_wise("name ", some.cast(pa.string()), "")
            writer.write_table(pa.table([some, names], schema=schema))


@pytest.mark.root
@pytest.mark.parametrize(
    ("rows", "limit_mib"),
    [
        pytest.param(20_000_000, 512, marks=pytest.mark.slow),
        pytest.param(100_000_000, 1024, marks=pytest.mark.huge),
    ],
)
@pytest.mark.timeout(3600)
def test_unique_keys_and_distinct_texts_of_any_number_go_through_little_memory(
    rows: int, limit_mib: int, tmp_path: Path, repository: Path
) -> None:
    generate(tmp_path / "rows.parquet", rows)
    with memory_limit(limit_mib * MIB) as group:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(group), str(tmp_path / "rows.parquet"), str(rows)],
            cwd=repository, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{rows:,} rows under {limit_mib} MiB: {result}")
    assert (result["accepted"], result["rows"], result["gx"]) == (True, rows, False)
