"""This machine: its boot, processors, memory and GPUs, and the energy that its GPUs use.

The machine's id is one that all its processes find, and that tells nothing about it. Processors and memory are those
of the machine, or of this process's control groups if these allow less. GPUs are counted as the kernel lists them,
without torch and without a driver's library.

Energy is measured where the GPUs' driver (NVML) counts it. Its counters are those of the whole machine, so a lock on
them decides which process measures: every joule has one payer. NVML needs `nvidia-ml-py`, which Trainwright uses if it
is installed. Processors, memory, fans, disks and power supplies are not measured.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from data_contracts.costs import GpuReading, Resources
from infra import files

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_GROUPS, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
NVIDIA = Path("/dev/nvidiactl")


def num_gpus(root: Path = Path("/")) -> int | None:
    """The number of NVIDIA GPUs; 0 without any accelerator; None where another maker's may be there."""
    try:
        return len(list((root / "proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        others = [
            *root.glob("dev/kfd"),
            *root.glob("dev/accel*"),
            *root.glob("dev/davinci*"),
            *root.glob("dev/nvidia*"),
        ]
        return None if others else 0


def boot_id() -> str:
    """The id of this machine's boot; "" if the kernel gives none."""
    return _text(_BOOT).strip()


@functools.cache
def machine_id() -> str:
    """16 hexadecimal digits, equal for all processes of this machine until it restarts; "" if it has none.

    A container with a host name of its own counts as a machine of its own, as it has in a price list.
    """
    boot = boot_id()
    return hashlib.sha256(f"{boot}\0{platform.node()}".encode()).hexdigest()[:16] if boot else ""


def num_cores(groups: Path = _GROUPS, root: Path = _ROOT) -> int:
    """The processors that this process may use: those of its affinity, or its control groups' quota if that is less.

    Args:
        groups: lists the process's groups; version 1 of the kernel's interface has one for each resource.
        root: where the groups are folders.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _group_folders("cpu", groups, root):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        quota = quota or _text(folder / "cpu.cfs_quota_us").strip()
        period = period or _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and int(quota) > 0:
            cores = min(cores, -(-int(quota) // int(period)))
    return max(1, cores)


def threads_per_process(processes: int) -> int:
    """OMP_NUM_THREADS for each of some processes that share this machine's processors; at least 1."""
    return max(1, num_cores() // max(1, processes))


def group_limit_bytes(groups: Path = _GROUPS, root: Path = _ROOT) -> int | None:
    """The least memory limit of this process's group and those above it; None if there is none, or no such group.

    Args:
        groups, root: as for `num_cores`.
    """
    names = ("memory.max", "memory.limit_in_bytes")
    folders = _group_folders("memory", groups, root)
    limits = [_text(folder / name).strip() for folder in folders for name in names]
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)


def _group_folders(resource: str, groups: Path, root: Path) -> Iterator[Path]:
    """The folders of this process's control groups of a resource, and of the groups above them."""
    for line in _text(groups).splitlines():
        _, resources, path = line.split(":", 2)
        if resources and resource not in resources.split(","):
            continue
        top = root / resource if resources else root
        folder = top / path.lstrip("/")
        # In a container, the group's own path may not be there; its limit is that of the top.
        yield from (above for above in (folder, *folder.parents) if above == top or top in above.parents)


def machine_bytes() -> int:
    """The memory of this machine, or the limit of this process's control group if that is less."""
    machine = psutil.virtual_memory().total
    return min(machine, group_limit_bytes() or machine)


def free_bytes() -> int:
    """The memory of this machine that is free, or the limit of this process's control group if that is less."""
    free = psutil.virtual_memory().available
    return min(free, group_limit_bytes() or free)


def tree_bytes(pid: int) -> int:
    """The memory of a process and of all that descend from it, without mapped files; 0 where Linux does not say."""
    pages, waiting = 0, [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        resident, shared = ([int(count) for count in _text(process / "statm").split()] or [0] * 3)[1:3]
        pages += resident - shared
        for children in process.glob("task/*/children"):
            waiting += map(int, _text(children).split())
    return pages * os.sysconf("SC_PAGE_SIZE")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def installed_nvml() -> Any:
    """The module of `nvidia-ml-py`, ready for use; None if there is none, or no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, or one that it does not know: nothing can be measured
        return None
    return pynvml


class Gpus:
    """The energy counters of NVIDIA GPUs, and how much of the time they compute.

    Args:
        nvml: the module; None if there is none.
    """

    def __init__(self, nvml: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._clock = nvml, clock
        self._devices: dict[Any, int] = {}
        self._at = clock()
        for number in range(nvml.nvmlDeviceGetCount()) if nvml is not None else ():
            with contextlib.suppress(Exception):  # GPUs before Volta count no energy
                device = nvml.nvmlDeviceGetHandleByIndex(number)
                self._devices[device] = nvml.nvmlDeviceGetTotalEnergyConsumption(device)
        self.found = bool(self._devices)

    def sample(self) -> tuple[int, int]:
        """Millijoules since the last call, and the milliseconds in which GPUs computed, summed over them."""
        now, spent, busy_ms = self._clock(), 0, 0.0
        for device, before in self._devices.items():
            with contextlib.suppress(Exception):  # a GPU that fell off the bus counts nothing more
                count = self._nvml.nvmlDeviceGetTotalEnergyConsumption(device)
                # The driver counts since it was loaded.
                spent += max(count - before, 0)
                self._devices[device] = count
                busy_ms += self._nvml.nvmlDeviceGetUtilizationRates(device).gpu * 10 * (now - self._at)
        self._at = now
        return spent, round(busy_ms)


def gpu_readings(nvml: Any) -> list[GpuReading]:
    """What each GPU's driver says now; without a GPU that does not answer, and empty without NVML."""
    readings = []
    for index in range(nvml.nvmlDeviceGetCount()) if nvml is not None else ():
        with contextlib.suppress(Exception):  # a GPU that fell off the bus
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            # As nvidia-smi counts: without what the driver keeps for itself, which the first version adds to `used`.
            memory = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
            more: dict[str, float] = {}
            with contextlib.suppress(Exception):  # not every GPU has both sensors
                more["watts"] = nvml.nvmlDeviceGetPowerUsage(device) / 1000
                more["celsius"] = float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))
            busy = nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
            known = {"index": index, "busy": busy, "used_bytes": memory.used, "total_bytes": memory.total}
            readings.append(GpuReading(**known, **more))
    return readings


class EnergyMeter:
    """The energy of this machine's GPUs, in parts; nothing while another process measures it.

    Args:
        lock: what of the machine's is locked while this process measures.
    """

    def __init__(self, gpus: Gpus | None = None, lock: Path = NVIDIA) -> None:
        self._gpus = Gpus(installed_nvml()) if gpus is None else gpus
        self._lock: int | None = None
        self._elsewhere, self._sampling = False, threading.Lock()
        if self._gpus.found:
            self._take_lock(lock)

    def _take_lock(self, path: Path) -> None:
        try:
            self._lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._elsewhere = not files.take(self._lock)
            if self._elsewhere:
                self.close()
        except OSError:
            self.close()

    def sample(self) -> Resources:
        """The energy since the last call; without a figure if it cannot be measured here."""
        with self._sampling:
            if self._lock is None:
                return Resources(elsewhere=self._elsewhere)
            millijoules, busy_ms = self._gpus.sample()
            return Resources(millijoules=millijoules, gpu_busy_ms=busy_ms)

    def close(self) -> None:
        """Let another process measure."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
