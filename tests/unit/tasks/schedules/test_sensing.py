"""The sensor: new data starts one run, whatever is killed, and nothing is run again without being asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_contracts.errors import CorruptError, UsageError
from infra.store import Store, layout, open_store
from tasks import schedules
from tasks.schedules import Look, Sensor, StillArriving


class Killed(BaseException):
    """Stands for a SIGKILL."""


class Site:
    """A source's files, and Prefect, which makes one flow run for each key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, str] = {"/in/a": "1"}
        self.done = {"/in/a"}
        self.started: dict[str, int] = {}
        self.while_it_settles: Callable[[], object] = lambda: None
        self.settle_s: list[float] = []

    @property
    def store(self) -> Store:
        return open_store(str(self.folder))

    def sensor(self, complete: bool = True) -> Sensor:
        def sleep(seconds: float) -> None:
            self.settle_s.append(seconds)
            self.while_it_settles()

        listed = lambda: dict(self.files)  # noqa: E731
        return Sensor(self.store, "tiny", listed, lambda new: set(new) if complete else set(), 30.0, sleep)

    def start(self, key: str) -> str:
        self.started[key] = self.started.get(key, 0) + 1
        return f"run-{len(self.started)}"

    def look(self) -> Look:
        return self.sensor().look(self.start)

    def steps(self) -> list[str]:
        return list(self.store.list(layout.sensor_steps("tiny")))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "store")


@pytest.fixture
def begun(site: Site) -> Site:
    assert site.look().what == "first"
    return site


@pytest.fixture
def arrived(begun: Site) -> Site:
    """A new file is there."""
    begun.files["/in/b"] = "1"
    return begun


def test_the_first_look_takes_all_files_as_seen(site: Site) -> None:
    assert site.sensor().look().sentence.endswith("the 1 files that are there count as seen.")
    assert site.steps() == [], "looking by hand changes nothing"
    assert (site.look().what, site.look().what, site.started, site.steps()) == ("first", "nothing", {}, ["0.json"])


@pytest.mark.parametrize(("name", "stamp"), [("/in/b", "1"), ("/in/a", "2")], ids=["new", "changed"])
def test_new_and_changed_files_start_one_run(begun: Site, name: str, stamp: str) -> None:
    begun.files[name] = stamp
    by_hand = begun.sensor().look()
    assert (by_hand.what, by_hand.new, begun.started) == ("new", 1, {})
    look = begun.look()
    assert (look.what, look.new, look.sentence) == ("started", 1, f"{name} is new or changed. Started run-1.")
    assert [begun.look().what for _ in range(3)] == ["nothing"] * 3
    del begun.files[name]
    assert begun.look().what == "nothing", "a file that is gone"
    begun.files[name] = stamp
    assert (begun.look().what, list(begun.started.values())) == ("nothing", [1]), "it was seen"


@pytest.mark.parametrize("change", [("/in/b", "2"), ("/in/c", "1"), ("/in/b", None)], ids=["grows", "more", "vanishes"])
def test_a_file_that_is_still_written_starts_nothing(arrived: Site, change: tuple[str, str | None]) -> None:

    def write() -> None:
        arrived.files = {name: stamp for name, stamp in {**arrived.files, change[0]: change[1]}.items() if stamp}

    arrived.while_it_settles = write  # type: ignore[assignment]
    look = arrived.look()
    assert (look.what, arrived.started, arrived.settle_s) == ("arriving", {}, [30.0])
    assert "is not complete yet" in look.sentence
    arrived.while_it_settles = lambda: None
    assert arrived.look().what == ("nothing" if change[1] is None else "started")


def test_files_wait_for_what_marks_their_folder_as_complete(arrived: Site) -> None:
    assert arrived.sensor(complete=False).look(arrived.start).what == "arriving"
    assert arrived.settle_s == [], "no time is spent"


def test_a_file_that_vanishes_while_it_is_listed_is_no_error(begun: Site) -> None:
    listed = Mock(side_effect=StillArriving)
    seen, new = (Sensor(store, "tiny", listed, set, 0) for store in (begun.store, open_store(f"{begun.folder}-new")))
    assert (seen.look(begun.start).what, new.look(begun.start).what) == ("arriving", "arriving")
    with pytest.raises(UsageError, match="Files of tiny change while they are listed. Try again."):
        seen.reset("now")


@pytest.mark.parametrize("at", ["before the start", "after the start"])
def test_a_sensor_that_is_killed_starts_the_run_of_its_step_once(arrived: Site, at: str) -> None:

    def killed(key: str) -> str:
        if at == "after the start":
            arrived.start(key)
        raise Killed

    with pytest.raises(Killed):
        arrived.sensor().look(killed)
    assert arrived.sensor().look().sentence == "Step 1 of the sensor waits for its run to be started."
    assert "which an earlier look left" in arrived.look().sentence
    assert len(arrived.started) == 1, "Prefect makes one flow run for a key"
    assert (arrived.look().what, len(arrived.started)) == ("nothing", 1)


def test_a_step_under_the_number_of_another_ends_the_look(arrived: Site) -> None:
    arrived.look()
    arrived.store.create_once(layout.sensor_step("tiny", 2), arrived.store.read_json(layout.sensor_step("tiny", 1)))

    def start(key: str) -> str:
        assert arrived.started[key] < 3, "the cursor moves to and fro"
        return arrived.start(key)

    with pytest.raises(CorruptError, match=r"2.json is step 1 of the sensor"):
        arrived.sensor().look(start)
    assert list(arrived.started.values()) == [1]


def test_two_sensors_at_once_start_one_run(arrived: Site) -> None:
    looks: list[Look] = []
    arrived.while_it_settles = lambda: (
        setattr(arrived, "while_it_settles", lambda: None),
        looks.append(arrived.look()),
    )
    looks.append(arrived.look())
    assert [one.sentence.partition(" ")[0] for one in looks] == ["/in/b", "Another"]
    assert (list(arrived.started.values()), arrived.look().what) == ([1], "nothing")


def test_a_cursor_that_was_deleted_reruns_nothing_until_a_person_decides(arrived: Site) -> None:
    arrived.look()
    cursor = arrived.folder / layout.sensor_cursor("tiny")
    cursor.unlink()
    for start in (None, arrived.start):
        with pytest.raises(UsageError, match="cursor of the sensor of tiny was deleted, so it is unknown which files"):
            arrived.sensor().look(start)
    assert arrived.sensor().reset("now") == "The 2 files of tiny that are there count as seen."
    assert (arrived.look().what, len(arrived.started)) == ("nothing", 1)
    cursor.unlink()
    assert "No file of tiny counts as seen" in arrived.sensor().reset("beginning")
    look = arrived.look()
    assert (look.what, look.new, len(arrived.started), arrived.look().what) == ("started", 2, 2, "nothing")


def test_a_sensor_that_was_killed_in_its_first_look_goes_on(begun: Site) -> None:
    (begun.folder / layout.sensor_cursor("tiny")).unlink()
    begun.files["/in/b"] = "1"
    assert begun.look().what == "started"


def test_a_step_that_is_gone_is_one_sentence(arrived: Site) -> None:
    arrived.look()
    (arrived.folder / layout.sensor_step("tiny", 0)).unlink()
    with pytest.raises(UsageError, match="Step 0 of the sensor of tiny is gone"):
        arrived.look()


def test_many_steps_are_read_from_the_last_whole_one(begun: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "WHOLE_EVERY", 4)
    for n in range(1, 11):
        begun.files[f"/in/{n}"] = "1"
        assert begun.look().new == 1
    for n in range(8):
        (begun.folder / layout.sensor_step("tiny", n)).unlink()
    assert (begun.look().what, len(begun.started)) == ("nothing", 10)


@pytest.mark.parametrize(
    "value", [{}, {"sensor": "s", "step": "0"}, {"sensor": "s", "step": True}, {"sensor": {}, "step": 0}]
)
def test_a_cursor_that_somebody_changed_is_damage_until_it_is_reset(begun: Site, value: dict[str, object]) -> None:
    pointer = begun.store.pointer(layout.sensor_cursor("tiny"))
    pointer.swap(pointer.read(), value)
    with pytest.raises(CorruptError, match="cursor is not the record that belongs there"):
        begun.look()
    assert "count as seen" in begun.sensor().reset("now")
    assert begun.look().what == "nothing"
