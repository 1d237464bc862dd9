"""Looks up the facts of this machine and its libraries that decide the bits of a training."""

from __future__ import annotations

import contextlib
import hashlib
import platform
from pathlib import Path

import lightning as L
import torch

from data_contracts.messages.gang import MachineFacts

_CPU_INFO = Path("/proc/cpuinfo")


def machine_facts(device: torch.device) -> MachineFacts:
    """The facts of this process's machine; "" for a fact that the machine does not report."""
    cpu, flags = _cpu()
    name = f"{device.type} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type
    return MachineFacts(
        system=platform.system(),
        machine=platform.machine(),
        cpu=cpu,
        flags=_short_digest(" ".join(sorted(flags.split()))) if flags else "",
        libc=" ".join(platform.libc_ver()),
        python=platform.python_version(),
        torch=torch.__version__,
        lightning=L.__version__,
        build=_short_digest(torch.__config__.show()),
        vector=torch.backends.cpu.get_cpu_capability(),
        device=name,
        threads=torch.get_num_threads(),
    )


def _cpu() -> tuple[str, str]:
    """The model's name and the flags of the first processor."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in _CPU_INFO.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    return found.get("model name", platform.processor()), found.get("flags") or found.get("Features", "")


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
