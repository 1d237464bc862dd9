"""What listens where: the listening sockets of all processes that carry a mark, as the kernel has them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import struct
from pathlib import Path

from infra.processes.processes import find_marked

_LISTEN = "0A"


def listeners(mark: str) -> dict[str, set[str]]:
    """TCP and UDP addresses on which the marked processes can be reached, with the command lines that do."""
    found: dict[str, set[str]] = {}
    for pid in find_marked(mark):
        with contextlib.suppress(OSError):
            inodes = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            for address in _addresses(pid, inodes):
                found.setdefault(address, set()).add(command)
    return found


def _addresses(pid: int, inodes: set[str]) -> set[str]:
    found = set()
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        # The process' own network namespace, which need not be this one's.
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in inodes and (fields[3] == _LISTEN or kind.startswith("udp")):
                found.add(_address(fields[1].partition(":")[0]))
    return found


def _address(text: str) -> str:
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))
