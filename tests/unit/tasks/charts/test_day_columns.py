"""Columns by day: nothing is drawn of nothing, the legend names what is there, and counts have whole ticks."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tasks.charts.picture import width_of
from tasks.charts.plots import DayColumn, day_columns
from tests.support.pictures import texts_of

COLOURS = {"promoted": "green", "failed": "red"}


def days(*parts: dict[str, float]) -> list[DayColumn]:
    return [DayColumn(f"2026-11-{number + 1:02}", one, "1") for number, one in enumerate(parts)]


@pytest.mark.parametrize("parts", [[], [{}], [{"promoted": 0.0}], [{"promoted": float("nan")}], [{"other": 0.0}]])
def test_nothing_is_drawn_of_nothing(parts: list[dict[str, float]]) -> None:
    assert day_columns(days(*parts), COLOURS, "title", "runs") == ""


def test_the_parts_of_a_day_stand_on_each_other() -> None:
    picture = day_columns(days({"promoted": 3, "failed": 1}, {}), {**COLOURS, "never": "blue"}, "title", "runs")
    shown = ET.fromstring(picture)
    columns = [one for one in shown.iter("{http://www.w3.org/2000/svg}rect") if float(one.get("width", 0)) > 60]
    drawn = [one for one in columns if one.get("fill") in ("green", "red")]
    below, above = ((float(one.get("y", 0)), float(one.get("height", 0))) for one in drawn)
    assert below[1] == pytest.approx(3 * above[1], abs=0.1)
    assert above[0] + above[1] == pytest.approx(below[0], abs=0.1)
    texts = texts_of(picture)
    assert {"promoted", "failed", "01", "02"} <= set(texts)
    assert not {"never", "0.5", "1.5"} & set(texts)
    assert "2026-11-01: promoted 3, failed 1 (runs)" in picture
    assert "2026-11-02: nothing (runs)" in picture


def test_the_labels_of_small_values_are_whole() -> None:
    shown = ET.fromstring(day_columns(days({"promoted": 0.0072}), COLOURS, "title", "hours"))
    texts = [one for one in shown.iter("{http://www.w3.org/2000/svg}text") if one.get("text-anchor") == "end"]
    assert "0.0050" in [one.text for one in texts]
    assert all(float(one.get("x", 0)) >= width_of(one.text or "", 11) for one in texts)


def test_fourteen_days_of_anything_fit() -> None:
    picture = day_columns(days(*[{"promoted": 1e6, "failed": 1e-9}] * 14), COLOURS, "<title>", "hours")
    assert float(ET.fromstring(picture).get("width", 0)) <= 320
    assert "<title>&lt;title&gt;</title>" in picture
