"""Lets Arrow do without pandas in a process that runs no code of the user's.

Arrow imports pandas, for 0.25 s, as soon as it makes a scalar or an array of Python's or NumPy's values, to see whether
these are of pandas. It tries once. Without pandas it takes a `Series` for any sequence, and makes no Python value of a
time in nanoseconds; `to_pandas` still imports it.
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
    """From now on, have Arrow take no value for one of pandas, unless pandas is there already."""
    if "pandas" in sys.modules:
        return
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        import pyarrow as pa

        pa.scalar(0)
    finally:
        sys.meta_path.remove(refusal)
