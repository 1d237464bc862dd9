"""Which machine this is: a name that all its processes find, and that tells nothing about it."""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def machine_id() -> str:
    """16 hexadecimal digits, equal for all processes of this machine until it restarts; "" if it has none.

    A container with a host name of its own counts as a machine of its own, as it has in a price list.
    """
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"{boot}\0{platform.node()}".encode()).hexdigest()[:16]
