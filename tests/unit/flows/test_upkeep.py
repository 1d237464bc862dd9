"""A day's upkeep of a store: its state says what was deleted and verified, or in one sentence each what is wrong."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.states import State

from flows import upkeep
from infra.scrub import Checked, due_on
from infra.settings import remember_store
from infra.store import open_store
from tests.support.damage import HARMS
from tests.support.histories import OLD_S, YOUNG_S, History


class Day:
    """A store's upkeep on the day on which `uri` is due."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.told, self._patch = open_store(str(folder / "store")), list[Any](), monkeypatch
        self.history, self.root = History(self.store), folder / "store"
        monkeypatch.setattr(upkeep, "announce_damage", lambda *about: self.told.append(about))

    def of(self, uri: str) -> State:
        today = datetime(2026, 11, 30, tzinfo=UTC)
        day = next(at for n in range(30) if due_on((at := today + timedelta(days=n)).date(), [uri]))
        self._patch.setattr(upkeep, "flow_run", SimpleNamespace(scheduled_start_time=day))
        state = upkeep.upkeep.fn(str(self.root))
        assert isinstance(state, State)
        assert "\n" not in str(state.message)
        return state


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "begin_flow_run_logs", lambda: None)


@pytest.fixture
def day(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Day:
    return Day(tmp_path, monkeypatch)


def test_what_nothing_names_goes_and_what_is_due_is_verified(day: Day) -> None:
    day.history.sealed("datasets", OLD_S)
    stays = day.history.sealed("datasets", YOUNG_S)
    day.history.ageing()
    state = day.of(stays)
    assert (state.is_completed(), day.history.there(), day.told) == (True, {stays}, [])
    cleaned, verified = str(state.message).split(" Verified: ")
    assert cleaned.startswith(f"Cleaned: 1 dataset deleted from {day.root}: ")
    assert verified == "1 of the 1 sealed directories that are due today are whole (50 bytes)."


def test_damage_and_a_store_that_cannot_be_cleaned_are_both_told(day: Day) -> None:
    dataset = day.history.sealed("datasets", YOUNG_S)
    path = Path(day.store.uri, dataset, "part-0")
    HARMS["bit"](path, path)
    broken = day.history.sealed("contracts", YOUNG_S)
    path = Path(day.store.uri, broken, "manifest.json")
    HARMS["half"](path, path)
    for uri, wrong in ((dataset, "part-0 does not hold the bytes"), (broken, "manifest.json does not end with a seal")):
        state = day.of(uri)
        assert state.is_failed()
        message = str(state.message)
        assert "Nothing was deleted, because it is unknown what this file refers to." in message
        assert f"The store {day.root} is damaged in 1 of its sealed directories: {uri}/{wrong}" in message
        assert "0 of the 1 sealed directories that are due today are whole" in message
        assert day.told.pop()[:2] == (str(day.root), [uri])


def test_a_store_that_no_run_has_made_is_no_fault_and_one_that_is_gone_is(day: Day) -> None:
    shutil.rmtree(day.root)
    state = day.of("datasets/k-0")
    assert (state.name, state.message) == ("Nothing", f"There is no store at {day.root} yet: no run has made one.")
    remember_store(str(day.root), {})
    state = day.of("datasets/k-0")
    assert state.is_failed()
    assert f"There is no store at {day.root}." in str(state.message)


def test_a_store_that_does_not_answer_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE_KEY", "STORE_SECRET"):
        monkeypatch.setenv(name, "value-of-a-secret")
    url = "http://127.0.0.1:9"
    named = ["env:STORE_KEY", "env:STORE_SECRET"]
    monkeypatch.setenv("TRAINWRIGHT_APPROVED", json.dumps({url: named}))
    options = dict(zip(("key", "secret"), named, strict=True)) | {"endpoint_url": url}
    state = upkeep.upkeep.fn("s3://bucket/prefix", {**options, "config_kwargs": {"retries": {"max_attempts": 1}}})
    assert (state.is_failed(), "\n" in str(state.message)) == (True, False)
    assert "s3://bucket/prefix" in str(state.message)
    assert "value-of-a-secret" not in str(state.message)


def test_a_day_on_which_nothing_is_due_and_one_that_was_not_ended() -> None:
    assert upkeep.verified_in_words(0, []) == "Verified: nothing, because no sealed directory is due today."
    whole = "Verified: 1 of the 3 sealed directories that are due today are whole (5 bytes); 2 were deleted meanwhile, "
    assert upkeep.verified_in_words(3, [Checked("datasets/k-0", 5)]) == f"{whole}or were not reached."


def test_a_message_names_a_few_and_the_page_all() -> None:
    damaged = [Checked(f"datasets/{n}-0", damage=f"datasets/{n}-0/|x is missing.") for n in range(12)]
    message = upkeep.damage_in_words("/s", damaged)
    assert "datasets/9-0/|x is missing; and 2 more. Restore" in message
    page = upkeep.upkeep_page("/s", ["Cleaned."], damaged)
    assert r"| `datasets/11-0` | datasets/11-0/\|x is missing. |" in page
