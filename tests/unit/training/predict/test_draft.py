"""The folder of unfinished work: one process at a time, parts without gaps, nothing of another's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from training.predict import output
from training.predict.output import UnfinishedOutput

RECORD = {"the model": "a", "the input": "b"}


def part(folder: UnfinishedOutput, first: int, end: int) -> None:
    folder.unfinished.write_text("x")
    folder.finish(first, end)


def test_parts_count_without_gaps_from_the_first_row_on(tmp_path: Path) -> None:
    one = UnfinishedOutput(tmp_path / "out.csv", RECORD)
    assert one.folder.stat().st_mode & 0o077 == 0
    for first, end in ((0, 4), (4, 8), (12, 16), (6, 9)):
        part(one, first, end)
    assert [found[:2] for found in one.parts()] == [(0, 4), (4, 8)]
    assert len(list(one.folder.glob("part-*"))) == 2
    one.close()
    again = UnfinishedOutput(tmp_path / "out.csv", RECORD)
    assert (again.begun_anew, len(again.parts())) == ("", 2)
    again.close()
    other = UnfinishedOutput(tmp_path / "out.csv", {**RECORD, "the model": "c"})
    assert (other.begun_anew, other.parts()) == ("the model", [])
    part(other, 0, 4)
    (other.folder / "record.json").write_text("{")
    other.close()
    torn = UnfinishedOutput(tmp_path / "out.csv", {**RECORD, "the model": "c"})
    assert torn.parts() == [], "begun anew"
    torn.remove()
    assert list(tmp_path.iterdir()) == []


def test_who_comes_while_the_folder_is_removed_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "WAIT_S", 300.0)
    ending = UnfinishedOutput(tmp_path / "out.csv", RECORD)
    for row in range(10_000):  # they take longer to remove than the other waits between two tries
        (ending.folder / f"part-{row:015d}-{row + 1:015d}.arrow").touch()

    def come() -> list[tuple[int, int, Path]]:
        other = UnfinishedOutput(tmp_path / "out.csv", RECORD)
        parts = other.parts()
        other.remove()
        other.close()
        return parts

    with ThreadPoolExecutor(1) as pool:
        parts = pool.submit(come)
        ending.remove()
        ending.close()
        assert parts.result() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_not_our_folder_is_left_alone(tmp_path: Path, kind: str) -> None:
    place = tmp_path / ".out.csv.trainwright"
    (tmp_path / "elsewhere").mkdir()
    place.write_text("x") if kind == "file" else place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is not a folder of this user"):
        UnfinishedOutput(tmp_path / "out.csv", RECORD)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_name_is_given_once(tmp_path: Path) -> None:
    one = UnfinishedOutput(tmp_path / "out.csv", RECORD)
    one.whole.write_text("new")
    (tmp_path / "out.csv").write_text("old")
    with pytest.raises(UsageError, match="exists already"):
        one.publish(overwrite=False)
    assert (tmp_path / "out.csv").read_text() == "old"
    one.publish(overwrite=True)
    one.close()
    assert (tmp_path / "out.csv").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
