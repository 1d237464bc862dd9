"""An export's folder is complete or not there, whatever happens to the process that makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from tasks.export import check_free, made_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_gets_its_name_when_all_is_written(there: bool, tmp_path: Path) -> None:
    folder = tmp_path / "out [1]"
    if there:
        folder.mkdir()
    with made_whole(folder) as draft:
        (draft / "file").write_text("whole")
        assert not there or names(folder) == []
        assert not (folder / "file").exists()
    assert names(tmp_path) == ["out [1]"]
    assert (folder / "file").read_text() == "whole"
    (plain := tmp_path / "plain").mkdir()
    assert folder.stat().st_mode == plain.stat().st_mode


def failing(folder: Path) -> None:
    with made_whole(folder) as draft:
        (draft / "file").write_text("half")
        raise ZeroDivisionError


def overtaken(folder: Path) -> None:
    with made_whole(folder) as second:
        (second / "file").write_text("second")
        with made_whole(folder) as first:
            (first / "file").write_text("first")


def replaced_by_a_link(folder: Path, target: Path) -> None:
    with made_whole(folder) as draft:
        (draft / "file").write_text("mine")
        folder.symlink_to(target)


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        failing(tmp_path / "out")
    assert names(tmp_path) == []


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was filled while the export was made"):
        overtaken(tmp_path / "out")
    assert (names(tmp_path), (tmp_path / "out/file").read_text()) == (["out"], "first")


def test_a_link_put_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UsageError):
        replaced_by_a_link(tmp_path / "out", tmp_path / "elsewhere")
    assert names(tmp_path / "elsewhere") == []
    with pytest.raises(UsageError, match="is a link"):
        check_free(tmp_path / "out")
