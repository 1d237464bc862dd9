"""Imports large packages with Python's cyclic garbage collector paused.

What an import makes stays until the process ends, so collections meanwhile find nothing: they took 12 to 20% of the
processor time of importing Lightning, and as much of Great Expectations. `python -m infra.processes.paused_collector
MODULE ARGUMENT…` runs a child's module that way; `child_main` starts the collector again.
"""

from __future__ import annotations

import gc
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector inside, if it runs."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def main() -> None:
    """Become MODULE, whose imports come first; the collector stays paused until MODULE enables it."""
    gc.disable()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
