"""What a rank reports where a GPU works behind it: the device's place, its steps and its own work, not the host's."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from data_contracts.messages.gang import STEP_BOUNDS
from tests.support.clocks import Clock
from tests.support.device_events import Device
from training.fit.reports import DeviceTimes, Measures, RankActivity

STEP = (("fetching", 1.0), ("forward", 2.0), ("backward", 4.0), ("stepping", 3.0))
STEP_S = 10.0


class Rank:
    """A rank whose host queues steps at once, and whose device takes STEP_S for each."""

    def __init__(self) -> None:
        self.clock, self.device = Clock(), Device()
        self.activity = RankActivity(self.clock)
        self.measures = Measures(self.activity, self.clock)
        self.activity.device = DeviceTimes(self.device.event, self.clock)

    def queue_step(self) -> None:
        self.measures.step()
        for place, seconds in STEP:
            self.activity.enter(place)
            self.device.give(seconds)
        self.activity.stepped()
        self.activity.enter("between")


def test_the_places_are_passed_in_order_and_each_has_the_time_that_the_device_took() -> None:
    rank = Rank()
    rank.queue_step()
    times = rank.activity.device
    seen = []
    for _ in range(10):
        assert not times.look() or rank.device.done_s == STEP_S
        seen.append(times.place)
        rank.device.do(1)
    assert times.look()
    assert seen == ["fetching", "forward", "forward", *["backward"] * 4, *["stepping"] * 3]
    assert times.spent_s == pytest.approx({"starting": 0.0, **dict(STEP)})
    assert times.place == "between"


def test_a_step_lasts_as_long_as_the_device_takes_and_what_follows_its_last_micro_batch_is_no_part_of_it() -> None:
    rank = Rank()
    for _ in range(3):
        rank.queue_step()
        rank.device.give(70)  # a checkpoint, or a validation
    rank.measures.step()
    rank.device.do(STEP_S + 80 + STEP_S / 2)  # a third of the second step is still ahead
    record = rank.measures.record(rank.activity.read().spent_s)
    assert record.steps_s == pytest.approx(STEP_S)
    rank.device.do(1000)
    record = rank.measures.record(rank.activity.read().spent_s)
    assert record.steps_s == pytest.approx(3 * STEP_S)
    [(bound, number)] = [(STEP_BOUNDS[at], number) for at, number in enumerate(record.step_counts) if number]
    assert number == 3
    assert bound >= STEP_S


def test_a_device_that_stands_still_is_where_the_rank_is_while_the_host_goes_on() -> None:
    rank = Rank()
    for _ in range(4):
        rank.queue_step()
    rank.activity.moved()  # a part of a checkpoint, by the host
    rank.device.do(2 * STEP_S + 2)
    before = rank.activity.read()
    rank.clock.now += 30
    rank.queue_step()
    after = rank.activity.read()
    assert (before.place, after.place) == ("forward", "forward")
    assert after.place_s == pytest.approx(30)
    # The steps that the host has queued are no progress.
    assert (before.steps, before.moves) == (after.steps, after.moves) == (2, 3)
    rank.device.do(1000)
    done = rank.activity.read()
    assert (done.steps, done.moves) == (5, 6)
    assert done.own_s == pytest.approx(5 * (1 + 2 + 3)), "without the backward passes, whatever the host's clock says"


def test_a_device_that_has_failed_stays_where_it_was_and_ends_no_report() -> None:
    rank = Rank()
    rank.queue_step()
    rank.device.do(2)
    before = rank.activity.read()
    rank.device.failed = True
    rank.queue_step()
    after = rank.activity.read()
    assert (before.place, after.place) == ("forward", "forward")
    assert (before.steps, before.moves, before.own_s) == (after.steps, after.moves, after.own_s)


def test_what_was_spent_before_a_device_was_followed_stays_counted() -> None:
    clock, device = Clock(), Device()
    activity = RankActivity(clock)
    clock.now += 40
    activity.enter("hooks")
    clock.now += 5
    activity.follow(DeviceTimes(device.event, clock))
    assert activity.read().spent_s == pytest.approx({**activity.spent_s, "starting": 40, "hooks": 5})
    device.give(2)
    activity.enter("forward")
    device.do(2)
    assert activity.read().spent_s["hooks"] == pytest.approx(5 + 2)


def test_who_looks_chooses_the_device() -> None:
    chosen = []
    on_device = contextlib.closing(SimpleNamespace(close=lambda: chosen.append("left")))
    DeviceTimes(Device().event, Clock(), lambda: on_device).look()
    assert chosen == ["left"]
