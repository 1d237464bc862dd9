"""The meter: rates, shares and the time left, told no more than twice a second."""

from __future__ import annotations

from data_contracts.messages.raw_data import ShardProgress
from training.shard.two_passes import Meter


def test_it_tells_rates_and_the_time_left():
    told, now = [], [0.0]
    meter = Meter(told.append, lambda: now[0])
    meter.begin("reading", 1000)
    for at in (0.1, 0.6, 0.7, 2.0):
        now[0] = at
        meter.add(100)
    now[0] = 4.0
    meter.add(600)
    assert [record.rows for record in told] == [200, 400, 1000]
    assert told[1] == ShardProgress(
        phase="reading", rows=400, total=1000, rows_per_s=200, share=0.4, seconds_left=3.0,
    )  # fmt: skip
    assert told[2].seconds_left == 0


def test_where_rows_are_unknown_the_bytes_say_how_far_it_is():
    told, now = [], [0.0]
    meter = Meter(told.append, lambda: now[0])
    meter.begin("reading", None, total_bytes=400)
    now[0] = 1.0
    meter.add(10)
    meter.add(0, of_bytes=100)
    now[0] = 2.0
    meter.add(10)
    meter.add(0, of_bytes=300)
    assert [(record.total, record.share, record.seconds_left) for record in told] == [
        (None, 0, None), (None, 0.25, 6.0), (None, 1, 0.0),
    ]  # fmt: skip
