"""This machine: its name, its GPUs, its memory, and the energy that it uses.

The machine's name is one that all its processes find, and that tells nothing about it. Its GPUs are counted as the
kernel says, without torch and without a driver's library; memory is that of the machine and of its control group.

Energy is measured where the kernel (RAPL) or the GPUs' driver (NVML) counts it. The counters are those of the whole
machine, so a lock on them decides who measures: every joule has one payer. RAPL counts processors and memory, and on
most machines only root may read it. NVML needs `nvidia-ml-py`, which Trainwright uses if it is installed. Fans, disks
and power supplies are in neither.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.costs import GpuReading, Resources
from infra import files

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_GROUPS, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
POWERCAP = Path("/sys/class/powercap")
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


def group_limit_bytes(groups: Path = _GROUPS, root: Path = _ROOT) -> int | None:
    """The least limit of this process's group and those above it; None if there is none, or no such group.

    Args:
        groups: lists the process's groups; version 1 of the kernel's interface has one for each resource.
        root: where the groups are folders.
    """
    limits: list[int] = []
    for line in _text(groups).splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if kinds else (root, "memory.max")
        folder = top / path.lstrip("/")
        # In a container, the group's own path may not be there; its limit is that of the top.
        while True:
            said = _text(folder / name).strip()
            limits += [int(said)] if said.isdigit() else []
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent
    return min(limits, default=None)


def machine_bytes() -> int:
    """The memory of this machine, or the limit of this process's control group if that is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, group_limit_bytes() or machine)


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


class Rapl:
    """The energy counters of processors and memory.

    Args:
        root: the folder of the kernel's power zones.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones: dict[Path, int] = {}
        self._range: dict[Path, int] = {}
        for zone in sorted(root.glob("intel-rapl:*")):
            with contextlib.suppress(OSError, ValueError):
                if _counts_apart(zone):
                    self._range[zone] = int((zone / "max_energy_range_uj").read_text())
                    self._zones[zone] = int((zone / "energy_uj").read_text())
        self.found = bool(self._zones)

    def microjoules(self) -> int:
        """The energy since the last call; a counter that began anew has passed its range once."""
        spent = 0
        for zone, before in self._zones.items():
            with contextlib.suppress(OSError, ValueError):
                now = int((zone / "energy_uj").read_text())
                spent += now - before if now >= before else now + self._range[zone] - before
                self._zones[zone] = now
        return spent


def _counts_apart(zone: Path) -> bool:
    """Whether a zone's energy is in no other zone's: a processor's (not the whole platform's), and memory's."""
    name = (zone / "name").read_text().strip()
    inner = re.fullmatch(r"intel-rapl:\d+:\d+", zone.name) is not None
    return name == "dram" if inner else name.startswith("package")


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
        """Microjoules since the last call, and the milliseconds in which GPUs computed, summed over them."""
        now, spent, busy_ms = self._clock(), 0, 0.0
        for device, before in self._devices.items():
            with contextlib.suppress(Exception):  # a GPU that fell off the bus counts nothing more
                count = self._nvml.nvmlDeviceGetTotalEnergyConsumption(device)
                # The driver counts millijoules since it was loaded.
                spent += max(count - before, 0) * 1000
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
    """This machine's energy, in parts; nothing while another process measures it.

    Args:
        lock: what of the machine's is locked while this process measures; None: as the counters need.
    """

    def __init__(self, rapl: Rapl | None = None, gpus: Gpus | None = None, lock: Path | None = None) -> None:
        self._rapl = Rapl() if rapl is None else rapl
        self._gpus = Gpus(installed_nvml()) if gpus is None else gpus
        self._microjoules = self._reported_mj = 0
        self._lock: int | None = None
        self._elsewhere, self._sampling = False, threading.Lock()
        if self._rapl.found or self._gpus.found:
            self._take_lock(lock or (NVIDIA if self._gpus.found else POWERCAP))

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
            return self._sample()

    def _sample(self) -> Resources:
        if self._lock is None:
            return Resources(elsewhere=self._elsewhere)
        spent, busy_ms = self._gpus.sample()
        self._microjoules += spent + self._rapl.microjoules()
        # Whole millijoules: what is left over is told with the next part.
        new = self._microjoules // 1000 - self._reported_mj
        self._reported_mj += new
        return Resources(millijoules=new, gpu_busy_ms=busy_ms if self._gpus.found else None)

    def close(self) -> None:
        """Let another process measure."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
