"""Times in sentences."""

from __future__ import annotations

from datetime import datetime

import pytest

from data_contracts.canonical import iso_month, month_of, readable

CASES = [
    ("2026-11-25T07:12:59+00:00", "2026-11-25 07:12 UTC"),
    ("2026-11-25T07:12:59.999999Z", "2026-11-25 07:12 UTC"),
    ("2026-11-26T00:30:00+01:00", "2026-11-25 23:30 UTC"),
    ("2026-11-25T07:12:59", "2026-11-25T07:12:59"),  # nobody knows of which zone
    ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00+14:00"),
    ("soon", "soon"),
    ("", ""),
]


@pytest.mark.parametrize(("moment", "text"), CASES)
def test_a_time_as_a_person_reads_it(moment: str, text: str) -> None:
    assert readable(moment) == text


def test_two_times_that_are_close() -> None:
    assert readable("2026-11-25T07:12:59+00:00", seconds=True) == "2026-11-25 07:12:59 UTC"


@pytest.mark.parametrize("text", ["2026-13", "2026-1", "26-01", "2026-10-01", "0000-01", "2026-10\n", "٢٠٢٦-10", ""])
def test_what_is_not_a_month_is_refused(text: str) -> None:
    assert iso_month("2026-10") == "2026-10"
    with pytest.raises(ValueError, match="is not a month; write it as 2026-11"):
        iso_month(text)


@pytest.mark.parametrize(
    ("moment", "start", "end"),
    [
        ("2026-11-25T07:12:59.5+00:00", "2026-11-01", "2026-12-01"),
        ("2026-12-31T23:59:59+00:00", "2026-12-01", "2027-01-01"),
        ("2028-02-29T12:00:00+00:00", "2028-02-01", "2028-03-01"),
        ("2026-03-01T00:30:00+01:00", "2026-02-01", "2026-03-01"),
        ("2026-11-01T00:00:00+00:00", "2026-11-01", "2026-12-01"),
    ],
)
def test_the_month_of_a_time_in_utc(moment: str, start: str, end: str) -> None:
    found = tuple(one.isoformat() for one in month_of(datetime.fromisoformat(moment)))
    assert found == (f"{start}T00:00:00+00:00", f"{end}T00:00:00+00:00")
