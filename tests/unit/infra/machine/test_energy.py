"""Energy is what the machine's counters say, through wraps, and of one process; no GPU here, so NVML is a stand-in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.costs import Resources
from infra.machine import EnergyMeter, Gpus, Rapl, gpu_readings

RANGE = 262_143_328_850


def zone(root: Path, name: str, called: str, energy: int) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(called)
    (folder / "max_energy_range_uj").write_text(str(RANGE))
    (folder / "energy_uj").write_text(str(energy))
    return folder


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


def test_zones_are_counted_once_and_through_a_wrap(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", RANGE - 1_000_000)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 5)
    cores, platform = zone(tmp_path, "intel-rapl:0:0", "core", 0), zone(tmp_path, "intel-rapl:1", "psys", 0)
    mirrored = zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    meter = EnergyMeter(Rapl(tmp_path), Gpus(None), tmp_path)
    for other in (cores, platform, mirrored):
        (other / "energy_uj").write_text("999999999")
    (package / "energy_uj").write_text("2000000")
    (memory / "energy_uj").write_text("500005")
    assert meter.sample() == Resources(millijoules=3500)
    (package / "energy_uj").unlink()
    assert meter.sample().millijoules == 0, "a counter that is gone counts nothing more"


def test_parts_of_millijoules_are_not_lost(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = EnergyMeter(Rapl(tmp_path), Gpus(None), tmp_path)
    told = 0
    for step in range(1, 11):
        (package / "energy_uj").write_text(str(step * 700))
        told += meter.sample().millijoules or 0
    assert told == 7


def test_one_process_measures_and_the_others_know_it(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    first = EnergyMeter(Rapl(tmp_path), Gpus(None), tmp_path)
    assert EnergyMeter(Rapl(tmp_path), Gpus(None), tmp_path).sample() == Resources(elsewhere=True)
    first.close()
    assert EnergyMeter(Rapl(tmp_path), Gpus(None), tmp_path).sample() == Resources(millijoules=0)


def test_gpus_count_energy_and_how_much_of_the_time_they_compute(tmp_path: Path) -> None:
    now = 100.0
    nvml = StandInNvml(1000, 2000, -1, busy=50)
    meter = EnergyMeter(Rapl(tmp_path), Gpus(nvml, lambda: now), tmp_path)
    nvml.counts[:2], now = [1500, 100], 104.0
    # The second driver's counter began anew; the third GPU counts nothing.
    assert meter.sample() == Resources(millijoules=500, gpu_busy_ms=4000)


@pytest.mark.parametrize("lock", ["", "missing"])
def test_without_counters_or_without_the_lock_nothing_is_known(lock: str, tmp_path: Path) -> None:
    if lock:
        zone(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = EnergyMeter(Rapl(tmp_path), Gpus(None), tmp_path / lock)
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
