"""A folder that a command is to fill: new or empty, and not reached by a link."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.files import check_new


def test_a_folder_that_is_new_or_empty_may_be_filled(tmp_path: Path) -> None:
    check_new(tmp_path, "Name another.")
    check_new(tmp_path / "new", "Name another.")
    assert list(tmp_path.iterdir()) == [], "a check makes nothing"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("full", "is not empty"), ("file", "is a file"), ("link", "is a link"), ("long", "cannot be used")],
)
def test_any_other_is_refused_with_the_callers_remedy(kind: str, words: str, tmp_path: Path) -> None:
    place = tmp_path / ("x" * 300 if kind == "long" else kind)
    if kind == "full":
        (place / "a").mkdir(parents=True)
    elif kind == "file":
        place.write_text("")
    elif kind == "link":
        place.symlink_to(tmp_path)
    with pytest.raises(UsageError, match=f"{words}.*Name another"):
        check_new(place, "Name another.")
