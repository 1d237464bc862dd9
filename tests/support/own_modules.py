"""Modules that a test writes and imports as a project's own, and that the next test file must not see."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

ENDING = "_of_a_test"


@contextlib.contextmanager
def own_modules() -> Iterator[None]:
    """Afterwards `sys.path` is as it was, and modules with `ENDING` that were imported meanwhile are forgotten."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.endswith(ENDING):
            del sys.modules[name]
