"""Events are appended once, and posted to the address that the spec of OpenLineage gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.mirrors import Deadline, Endpoint, append_events, post_events
from tests.support.stub_server import serving

EVENTS = [{"n": 1, "text": "ä\n"}, {"n": 2}]


def test_events_are_appended_once_even_after_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    append_events(path, EVENTS[:1])
    with path.open("ab") as file:
        file.write(b'{"n": ')  # a process was killed here
    for _ in range(2):
        append_events(path, EVENTS)
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in (lines[0], *lines[2:])] == EVENTS


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="cannot be written"):
        append_events(tmp_path / "link", EVENTS)


def test_events_are_posted() -> None:
    with serving(lambda _: (201, {})) as (address, got), Endpoint("X", address, {}, Deadline(60)) as server:
        post_events(server, EVENTS)
    assert [(one.path, one.json) for one in got] == [("/api/v1/lineage", event) for event in EVENTS]
