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
    ("name", "words"),
    [
        ("full", "is not empty"),
        ("file", "is a file"),
        ("link", "is a link"),
        pytest.param("x" * 300, "cannot be used", id="long"),
    ],
)
def test_any_other_is_refused_with_the_callers_remedy(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "full/a").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match=f"{words}.*Name another"):
        check_new(tmp_path / name, "Name another.")
