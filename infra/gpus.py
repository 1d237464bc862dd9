"""The energy that this machine's GPUs use, and what they say of themselves.

Energy is measured where the GPUs' driver (NVML) counts it. Its counters are those of the whole machine, so a lock on
them decides which process measures: every joule has one payer. NVML needs `nvidia-ml-py`, which Trainwright uses if it
is installed. Processors, memory, fans, disks and power supplies are not measured.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.costs import GpuReading, Resources
from infra import files

NVIDIA = Path("/dev/nvidiactl")


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
