"""A trace is cut by time, and says nothing of the machine."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch

from training.profile.trace import longest, rewrite, shortened

EVENTS = [
    {"ph": "X", "name": "late", "ts": 30.0},
    {"ph": "M", "name": "process_name"},
    {"ph": "X", "name": "early", "ts": 10},
    {"ph": "X", "name": "middle", "ts": 20.5},
]


def test_later_events_are_left_out_and_names_of_processes_stay() -> None:
    trace, cut = shortened({"traceEvents": EVENTS, "host_name": "secret", "displayTimeUnit": "ms"}, 2)
    assert cut
    assert trace["displayTimeUnit"] == "ms"
    assert "host_name" not in trace
    assert [one["name"] for one in trace["traceEvents"]] == ["process_name", "early", "middle"]
    assert not shortened({"traceEvents": EVENTS}, 3)[1]
    assert shortened({}, 3) == ({"traceEvents": []}, False)


def test_a_trace_of_torch_is_written_anew(tmp_path: Path) -> None:
    part = torch.profiler.record_function("trainwright: forward")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler, part:
        torch.ones(64, 64) @ torch.ones(64, 64)
    profiler.export_chrome_trace(str(tmp_path / "raw.json"))
    assert not rewrite(tmp_path / "raw.json", tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz") as file:
        trace = json.load(file)
    assert "trainwright: forward" in {one["name"] for one in trace["traceEvents"]}
    assert not {"host_name", "traceName", "trace_id"} & set(trace)
    operations = longest(profiler.key_averages())
    assert "aten::mm" in {one.name for one in operations}
    assert not [one for one in operations if one.name.startswith("trainwright")]
