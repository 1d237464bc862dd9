"""What a spec's sensor lists, and the `sensor` command, with files in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.load import load_spec
from flows.cli import main
from infra.store import Store, open_store
from tasks.schedules import Sensor, sensor_of
from tests.support.commands import json_of
from tests.support.tiny import write_project

SENSED = {"data": {"source": ["in/*/rows-{{ start }}.csv", "more.csv"], "window": {"path": "%Y-%m-%d"}}}


def project(folder: Path, **sensor: Any) -> tuple[Path, Sensor, Store]:
    path = write_project(folder / "tiny", {**SENSED, "schedule": {"sensor": {"settle_s": 0, **sensor}}})
    store = open_store(str(folder / "store"))
    return path.parent, sensor_of(load_spec(path, []), path.parent, store), store


def write(root: Path, name: str, text: str = "id\n1\n") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_files_of_every_source_and_window_count(tmp_path: Path) -> None:
    root, sensor, _ = project(tmp_path)
    started: list[str] = []
    start = lambda key: started.append(key) or "run"  # type: ignore[func-returns-value]  # noqa: E731
    assert sensor.look(start).sentence.endswith("the 0 files that are there count as seen.")
    for name, counts in [
        ("in/a/rows-2026-01-01.csv", True), ("in/b/rows-2026-01-02.csv", True), ("more.csv", True),
        ("in/a/other.csv", False), ("in/a/rows-2026-01-03.csv.tmp", False),
    ]:  # fmt: skip
        write(root, name)
        assert (sensor.look(start).what == "started") == counts, name
    write(root, "more.csv", "id\n2\n")
    assert sensor.look(start).new == 1, "the same size"
    before = (root / "more.csv").stat()
    write(root, "more.csv", "id\n3\n")
    os.utime(root / "more.csv", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sensor.look(start).new == 1, "the time was set back"
    (root / "more.csv").unlink()
    assert sensor.look(start).what == "nothing"
    assert len(set(started)) == len(started) == 5


def test_a_folder_is_complete_when_its_done_file_is_there(tmp_path: Path) -> None:
    root, sensor, _ = project(tmp_path, done_file="_SUCCESS")
    sensor.look(str)
    write(root, "in/a/rows-2026-01-01.csv")
    write(root, "in/b/_SUCCESS", "")
    assert sensor.look(str).what == "arriving"
    write(root, "in/a/_SUCCESS", "")
    assert sensor.look(str).what == "started"


def test_the_command_says_what_it_sees_and_starts_nothing(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, sensor, store = project(tmp_path)
    words = ["sensor", str(root / "pipeline.yaml"), "--store", store.uri, "--json"]
    sensor.look(str)
    write(root, "more.csv")
    for _ in range(2):
        said = json_of(capsys, *words)
        assert (said["what"], said["new"]) == ("new", 1)
    assert main([*words, "--reset", "now"]) == 0
    capsys.readouterr()
    assert json_of(capsys, *words)["what"] == "nothing"
    (tmp_path / "store/schedules/tiny/sensor/cursor").unlink()
    assert "was deleted" in json_of(capsys, *words, code=2)["error"]["message"]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"sensor": {"done_file": "a/b"}}, "schedule.sensor.done_file"),
        ({"sensor": {"done_file": ""}}, "schedule.sensor.done_file"),
        ({"sensor": {"done_file": "*"}}, "schedule.sensor.done_file"),
        ({"sensor": {"settle_s": -1}}, "schedule.sensor.settle_s"),
        ({"overlap": "wait"}, "schedule.overlap"),
        ({}, "schedule.sensor: the spec of tiny has no sensor"),
    ],
)
def test_bad_settings_are_refused_with_the_fields_name(
    tmp_path: Path, store: Store, schedule: dict[str, Any], said: str
) -> None:
    path = write_project(tmp_path / "tiny", {"schedule": schedule})
    with pytest.raises(UsageError, match=said):
        sensor_of(load_spec(path, []), path.parent, store)


def test_a_name_that_is_not_text_is_one_sentence(tmp_path: Path) -> None:
    root, sensor, _ = project(tmp_path)
    sensor.look(str)
    (root / "in/a").mkdir(parents=True)
    (root / os.fsdecode(b"in/a/rows-\xff.csv")).write_text("id\n1\n")
    with pytest.raises(UsageError, match=r"in/a/rows-\\udcff.csv has a name that is not UTF-8"):
        sensor.look(str)
