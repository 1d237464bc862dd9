"""A trace of steps in Chrome's format, which ui.perfetto.dev opens. It holds names and times, and no values."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from torch.autograd.profiler_util import EventList

from data_contracts.messages.commands import Operation

MOST_EVENTS = 400_000  # some 80 MB of JSON, 8 MB compressed
_MOST_OPERATIONS = 12
# What torch writes of the machine and of paths.
_LEFT_OUT = ("traceName", "distributedInfo", "host_name", "trace_id")


def rewrite(path: Path, to: Path, most_events: int = MOST_EVENTS) -> bool:
    """Write torch's trace anew without names of the machine, compressed; returns whether later events are left out."""
    # Python reads and writes NaN and Infinity, which are not JSON: the viewer would refuse the whole file.
    found = json.loads(path.read_text(errors="replace"), parse_constant=lambda _: None)
    trace, cut = shortened(found, most_events)
    with gzip.open(to, "wt", compresslevel=6) as file:
        json.dump(trace, file, allow_nan=False)
    return cut


def shortened(trace: dict[str, Any], most_events: int) -> tuple[dict[str, Any], bool]:
    """A trace with the first `most_events` events by time, and whether others are left out."""
    kept = {name: value for name, value in trace.items() if name not in _LEFT_OUT and name != "traceEvents"}
    events = trace.get("traceEvents", [])
    named = [one for one in events if one.get("ph") == "M"]
    timed = sorted((one for one in events if one.get("ph") != "M"), key=lambda one: float(one.get("ts", 0)))
    return {**kept, "traceEvents": [*named, *timed[:most_events]]}, len(timed) > most_events


def longest(averages: EventList) -> list[Operation]:
    """The operations with the most time of their own, longest first; on CUDA, that of the device."""
    on_device = any(one.self_device_time_total for one in averages)
    rows = [
        Operation(
            name=str(one.key)[:80],
            calls=one.count,
            seconds=(one.self_device_time_total if on_device else one.self_cpu_time_total) / 1e6,
        )
        for one in averages
        if not str(one.key).startswith(("trainwright: ", "ProfilerStep"))
    ]
    return sorted(rows, key=lambda one: -one.seconds)[:_MOST_OPERATIONS]
