"""Arrow makes scalars and arrays without importing pandas, and still hands tables over to it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from infra.processes.light_imports import without_pandas
without_pandas()
import pyarrow as pa
assert pa.array([1, None]).fill_null(pa.scalar(2)).to_pylist() == [1, 2]
assert "pandas" not in sys.modules
frame = pa.table({"a": [1, 2]}).to_pandas()
assert "pandas" in sys.modules
without_pandas()  # which is there by now
assert pa.array(frame["a"]).to_pylist() == [1, 2]
"""


def test_arrow_imports_pandas_when_it_is_asked_for_a_frame(repository):
    done = subprocess.run([sys.executable, "-c", CODE], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
