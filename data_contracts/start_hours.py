"""The hours of the day in which electricity or machines cost less, by the price book, and the best hour to start.

Hours decide only when a run starts (`schedule.within`); its cost is computed with the price of its machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from data_contracts.pipeline_spec.base import FieldError, Section
from data_contracts.times import Day

_HOUR = timedelta(hours=1)
DAY = 24


def hours_of(text: str) -> list[int]:
    """The hours of a day that `22-06` names, from the first to the one before the last; ValueError if it names none."""
    begin, dash, end = text.partition("-")
    if not (dash and len(begin) == len(end) == 2 and (begin + end).isdecimal() and (begin + end).isascii()):
        raise ValueError(f"{text!r} is not a range of hours; write it as 22-06")
    first, last = int(begin), int(end)
    if first >= DAY or last > DAY or first == last:
        raise ValueError(f"{text!r} is not a range of hours of a day; write it as 22-06, or 00-24 for all")
    return [hour % DAY for hour in range(first, last if last > first else last + DAY)]


def _checked(text: str) -> str:
    hours_of(text)
    return text


class HoursEntry(Section):
    """The relative cost of some hours of each day, from a day on. Hours are UTC."""

    date: Day
    """The first day of these figures, such as 2026-11-09; entries of a later day for the same region replace them."""
    hours: Annotated[str, AfterValidator(_checked)]
    """From the first hour until the last, UTC, such as `22-06`."""
    region: str = ""
    """Where they hold; default: in every region that has no entry of its own."""
    price: float | None = Field(default=None, ge=0)
    """Price in these hours as a share of the usual one, such as 0.7; default: 1."""
    g_per_kwh: float | None = Field(default=None, ge=0)
    """Carbon intensity in these hours: grams of CO2 equivalent for a kilowatt-hour; default: unknown."""
    source: str = ""
    """Where the figures were read."""

    @model_validator(mode="after")
    def _says_something(self) -> HoursEntry:
        if self.price is None and self.g_per_kwh is None:
            raise FieldError("price", "is missing, and so is g_per_kwh; give one of them")
        return self


def check_hours(entries: Sequence[HoursEntry]) -> None:
    """FieldError if two entries give a figure for the same hour, region and day."""
    first: set[tuple[str, str, str, int]] = set()
    for number, one in enumerate(entries):
        for figure in ("price", "g_per_kwh"):
            if getattr(one, figure) is None:
                continue
            for hour in hours_of(one.hours):
                if (figure, one.region, one.date, hour) in first:
                    where = f" in {one.region}" if one.region else ""
                    sentence = f"{one.date} has two values of {figure} for the hour {hour:02}{where}; keep one of them"
                    raise FieldError(("hours", number), sentence)
                first.add((figure, one.region, one.date, hour))


def cost_at(entries: Iterable[HoursEntry], region: str, moment: datetime) -> tuple[float, float]:
    """What an hour costs: the share of the usual price, then the carbon intensity (infinite if it is unknown)."""
    moment = moment.astimezone(UTC)
    known = [one for one in entries if one.date <= moment.date().isoformat()]
    known = [one for one in known if one.region == region] or [one for one in known if not one.region]
    newest = max((one.date for one in known), default="")
    holding = [one for one in known if one.date == newest and moment.hour in hours_of(one.hours)]
    price = next((one.price for one in holding if one.price is not None), 1.0)
    return price, next((one.g_per_kwh for one in holding if one.g_per_kwh is not None), float("inf"))


def best_start(entries: Sequence[HoursEntry], region: str, now: datetime, latest: datetime) -> datetime:
    """When to start between now and `latest`: in the hour of the lowest price; among equals, of the lowest carbon
    intensity; among equals, the earliest. `now` if that is this hour, and if `latest` has passed.
    """
    full = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    starts, at = [now], full + _HOUR
    while at <= latest:
        starts.append(at)
        at += _HOUR
    return min(starts, key=lambda start: (*cost_at(entries, region, start), start))
