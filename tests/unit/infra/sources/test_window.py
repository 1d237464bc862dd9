"""Windows as people and schedules give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from data_contracts.errors import UsageError
from infra.sources import Window, parse_window

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
JANUARY = Window(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("2026-01-01..2026-02-01", JANUARY),
        (" 2026-01-01 .. 2026-02-01 ", JANUARY),
        ("2026-01-01T00:00:00Z..2026-02-01T00:00:00+00:00", JANUARY),
        ("2026-01-01T02:00:00+02:00..2026-02-01", JANUARY),
        ("7d", Window(NOW - timedelta(days=7), NOW)),
        ("12h", Window(NOW - timedelta(hours=12), NOW)),
        ("90m", Window(NOW - timedelta(minutes=90), NOW)),
        ("2w", Window(NOW - timedelta(weeks=2), NOW)),
    ],
)
def test_a_window_is_read(text: str, window: Window) -> None:
    read = parse_window(text, NOW)
    assert read == window
    assert parse_window(str(read), NOW) == window
    assert Window.from_iso(read.start.isoformat(), read.end.isoformat()) == window


UNREADABLE = ["", "january", "2026-01-01", "2026-13-01..2026-02-01", "7y", "-7d", "..", "9999999w"]
EMPTY = ["2026-02-01..2026-01-01", "2026-01-01..2026-01-01", "0d"]


@pytest.mark.parametrize("text", [*UNREADABLE, *EMPTY])
def test_what_is_no_window_is_refused(text: str) -> None:
    why = "is empty: its end is not after its start" if text in EMPTY else "cannot be read: "
    with pytest.raises(UsageError, match=rf"The window .* {why}.* Write START..END"):
        parse_window(text, NOW)


def test_a_time_without_a_zone_is_utc_and_another_zone_is_kept_exact() -> None:
    assert parse_window("1d", NOW.replace(tzinfo=None)).end == NOW
    east = NOW.astimezone(timezone(timedelta(hours=5)))
    assert parse_window("1d", east) == parse_window("1d", NOW)
