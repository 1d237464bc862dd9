"""A trace is cut by time, and says nothing of the machine."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from training.profile import longest, rewrite, shortened

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
    for event in trace["traceEvents"]:  # what a viewer needs of an event
        assert {"name", "ph", "pid", "tid"} <= set(event)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    assert "trainwright: forward" in {one["name"] for one in trace["traceEvents"]}
    assert not {"host_name", "traceName", "trace_id"} & set(trace)
    operations = longest(profiler.key_averages())
    assert "aten::mm" in {one.name for one in operations}
    assert not [one for one in operations if one.name.startswith("trainwright")]


def test_a_trace_is_json_as_every_viewer_reads_it(tmp_path: Path) -> None:
    event = '{"ph": "X", "name": "kernel", "ts": 1, "dur": 2, "args": {"occupancy": [NaN, Infinity, -Infinity, 0.5]}}'
    (tmp_path / "raw.json").write_text(f'{{"traceEvents": [{event}]}}')
    rewrite(tmp_path / "raw.json", tmp_path / "trace.json.gz")
    written = gzip.decompress((tmp_path / "trace.json.gz").read_bytes())
    [found] = json.loads(written, parse_constant=lambda name: pytest.fail(name))["traceEvents"]
    assert found["args"] == {"occupancy": [None, None, None, 0.5]}
