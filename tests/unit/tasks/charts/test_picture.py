"""A picture is XML whatever its texts are, and holds no number that is not finite."""

from __future__ import annotations

import base64
import math

import pytest

from tasks.charts.picture import Picture, as_image, fitted, number, width_of
from tests.support.pictures import HOSTILE, texts_of


def test_hostile_texts_are_texts() -> None:
    picture = Picture(200, 100, HOSTILE)
    picture.text((10, 20), HOSTILE, room=120)
    picture.text((10, 40), HOSTILE)
    picture.tip((0, 0, 10, 10), HOSTILE)
    cut, whole = texts_of(picture.svg())
    assert cut.endswith("…")
    assert whole.startswith("<script>alert(1)</script>\" onload='x' & ]]>")


def test_a_text_is_cut_to_its_room_and_an_empty_one_is_not_drawn() -> None:
    for room in (5, 20, 60, 300):
        assert width_of(fitted("accuracy on weekends", 12, room), 12) <= max(room, width_of("…", 12))
    assert fitted("short", 12, 300) == "short"
    picture = Picture(10, 10, "t")
    picture.text((0, 0), "")
    assert picture.parts == []


def test_a_coordinate_that_is_not_finite_is_refused() -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not finite"):
            number(value)


def test_an_image_is_one_data_uri_in_which_nothing_can_be_read_as_markdown() -> None:
    picture = Picture(10, 10, "](https://evil.example)")
    head, _, data = as_image(picture.svg(), "gates").partition("base64,")
    assert head == "![gates](data:image/svg+xml;"
    assert base64.b64decode(data.removesuffix(")")).decode() == picture.svg()
