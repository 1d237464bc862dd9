"""Lets Arrow do without pandas in a process that runs no code of the user's.

When Arrow first makes a scalar or an array from Python's or NumPy's values, it imports pandas, which takes 0.25 s, to
see whether the values are from pandas. It tries only once. Without pandas, Arrow treats a `Series` like any sequence,
and makes no Python value from a time in nanoseconds; `to_pandas` still imports pandas.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _Refusal(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")


def without_pandas() -> None:
    """From now on, Arrow treats no value as one from pandas, unless pandas is already imported."""
    if "pandas" in sys.modules:
        return
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        import pyarrow as pa

        pa.scalar(0)
    finally:
        sys.meta_path.remove(refusal)
