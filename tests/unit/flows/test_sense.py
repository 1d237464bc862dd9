"""A look of the sensor's deployment: its state says what it found, or in one sentence what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.states import State

from flows import sense
from infra.store import layout, open_store
from tests.support.tiny import write_project, write_rows


def test_a_look_says_what_it_found_and_a_fault_in_one_sentence(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_project(tmp_path / "tiny", {"schedule": {"sensor": {"settle_s": 0}}})
    begun: list[str] = []
    monkeypatch.setattr(sense, "start_once", lambda deployment, key: begun.append(deployment) or "a-run")

    def look(path: Path = spec) -> State:
        state = sense.sensor.fn(str(path), "retrain/tiny")
        assert isinstance(state, State)
        return state

    assert look().name == "First"
    write_rows(spec.parent / "rows.csv", seed=2)
    assert (look().name, look().name, begun) == ("Started", "Nothing", ["retrain/tiny"])
    open_store(str(spec.parent / ".trainwright")).forget(layout.sensor_cursor("tiny"))
    for failed, sentence in ((look(), "The cursor of the sensor of tiny was deleted"), (look(tmp_path / "x"), "x")):
        assert failed.is_failed()
        assert sentence in str(failed.message)
        assert "\n" not in str(failed.message)
    assert len(begun) == 1
