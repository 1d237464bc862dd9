"""The parts of a step, its operations and its trace as torch's profiler recorded them; batches made before."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training.loader.loaders import ReadyBatches
from training.profile import (
    NamedParts,
    exchange_s,
    operations_of,
    steps_of,
    with_ready_batches,
    write_trace,
)

WIDTH = 512


@pytest.fixture(scope="module")
def recorded() -> torch.profiler.profile:
    """Two steps after one of warm-up, each with an optimizer's step with a backward pass in it, and a validation."""
    parts = NamedParts()
    matrix = torch.ones(WIDTH, WIDTH)
    steps = torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=steps)
    profiler.start()
    for _ in range(2):
        profiler.step()
        with parts.profile("[LightningModule]Net.optimizer_step"):
            time.sleep(0.02)
            with parts.profile("[Strategy]SingleDeviceStrategy.backward"):
                time.sleep(0.04)
                matrix @ matrix
        with parts.profile("[Callback]EarlyStopping.on_train_batch_end"):
            time.sleep(0.01)
        parts.begin("validation", "validation")
        time.sleep(0.03)
        parts.stop("validation")
    profiler.stop()
    return profiler


def test_a_second_belongs_to_the_innermost_part_of_its_step(recorded):
    steps = steps_of(recorded.events())
    assert len(steps) == 2
    for parts in steps:
        assert set(parts) == {"optimizer", "backward", "validation", "callbacks"}
        for part, seconds in {"optimizer": 0.02, "backward": 0.04, "validation": 0.03, "callbacks": 0.01}.items():
            assert seconds <= parts[part]
    in_all = sum(event.time_range.elapsed_us() for event in recorded.events() if event.name.startswith("ProfilerStep"))
    assert sum(sum(parts.values()) for parts in steps) == pytest.approx(in_all / 1e6)


def test_operations_have_their_own_time_and_no_names_of_parts(recorded):
    operations = operations_of(recorded.key_averages())
    product = next(row for row in operations if row.name == "aten::mm")
    assert product.calls == 2
    assert product.seconds > 2 * 2 * WIDTH**3 / 1e13
    assert not [row.name for row in operations if row.name.startswith(("trainwright", "ProfilerStep"))]


def test_what_an_exchange_takes_is_the_difference_of_middle_steps():
    assert exchange_s([{"backward": 3.0}, {"backward": 9.0}, {"backward": 4.0}], [{"backward": 1.0}, {}]) == 3.5
    assert exchange_s([{"backward": 1.0}], [{"backward": 2.0}]) == 0.0
    assert exchange_s([{"backward": 1.0}], []) is None


def test_a_trace_names_the_parts_and_nothing_of_the_machine(recorded, tmp_path: Path):
    write_trace(recorded, tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz") as file:
        trace = json.load(file, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert "trainwright: backward" in {event["name"] for event in trace["traceEvents"]}
    assert not {"host_name", "traceName", "trace_id"} & set(trace)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


def test_the_first_batches_are_repeated_to_the_number_of_steps() -> None:
    ready = ReadyBatches(iter([1, 2, 3]), 7)
    assert len(ready) == 7
    assert list(ready) == list(ready) == [1, 2, 3, 1, 2, 3, 1]
    assert list(ReadyBatches(iter(range(10)), 2)) == [0, 1]
    assert len(ReadyBatches([], 5)) == 0
    assert list(ReadyBatches([], 5)) == []


def test_the_loader_of_a_data_module_is_replaced() -> None:
    theirs: Any = SimpleNamespace(train_dataloader=lambda: [5])
    with_ready_batches({}, theirs, 2)
    assert list(theirs.train_dataloader()) == [5, 5]
