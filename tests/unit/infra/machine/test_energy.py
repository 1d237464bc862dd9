"""Energy is what the machine's counters say, and of one process; no GPU here, so NVML is a stand-in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.costs import Resources
from infra.gpus import EnergyMeter, Gpus, gpu_readings


class StandInNvml:
    """A driver of GPUs that count what a test says; not NVML itself."""

    def __init__(self, *millijoules: int, busy: int = 0) -> None:
        self.counts, self.busy = list(millijoules), busy

    def nvmlDeviceGetCount(self) -> int:
        return len(self.counts)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetTotalEnergyConsumption(self, device: int) -> int:
        if self.counts[device] < 0:
            raise RuntimeError("not supported")
        return self.counts[device]

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:
        return SimpleNamespace(gpu=self.busy)


def test_gpus_count_energy_and_how_much_of_the_time_they_compute(tmp_path: Path) -> None:
    now = 100.0
    nvml = StandInNvml(1000, 2000, -1, busy=50)
    meter = EnergyMeter(Gpus(nvml, lambda: now), tmp_path)
    nvml.counts[:2], now = [1500, 100], 104.0
    # The second driver's counter began anew; the third GPU counts nothing.
    assert meter.sample() == Resources(millijoules=500, gpu_busy_ms=4000)
    assert EnergyMeter(Gpus(nvml), tmp_path).sample() == Resources(elsewhere=True)
    meter.close()
    assert EnergyMeter(Gpus(nvml), tmp_path).sample().millijoules == 0


@pytest.mark.parametrize("nvml", [None, StandInNvml(1000)])
def test_without_counters_or_without_the_lock_nothing_is_known(nvml: StandInNvml | None, tmp_path: Path) -> None:
    meter = EnergyMeter(Gpus(nvml), tmp_path / "missing")
    assert meter.sample() == Resources()
    meter.close()


def test_a_gpus_memory_is_counted_as_nvidia_smi_does_without_what_the_driver_keeps_for_itself() -> None:
    def memory(_: object, version: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(total=80, used=10 if version == 2 else 16)

    nvml = SimpleNamespace(
        nvmlMemory_v2=2,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=25),
    )
    [reading] = gpu_readings(nvml)  # of a GPU without sensors of power and temperature
    assert (reading.used_bytes, reading.total_bytes, reading.busy, reading.watts) == (10, 80, 0.25, None)
