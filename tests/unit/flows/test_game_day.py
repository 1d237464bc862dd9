"""The store of a game day, and how one of its trainings answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import Hung, TrainwrightError, UsageError
from data_contracts.pipeline_spec import PipelineSpec
from flows import game_day
from flows.commands.gameday import _error
from flows.game_day import GameDay, _answer, carry_out, own_store, store_beside
from infra.machine import settings
from infra.store import Store, open_store
from tasks.gameday.faults import chosen
from tasks.gameday.outcome import Outcome, not_injected
from tasks.gameday.short_training import STEPS, own_overrides, shortened
from tests.support.s3 import S3Server, s3_server  # noqa: F401
from tests.support.tiny import SPEC


@pytest.mark.parametrize(
    ("address", "begins"),
    [
        ("/data/.trainwright", "/data/.trainwright-gameday-"),
        ("/data/store/", "/data/store-gameday-"),
        ("s3://bucket/team", "s3://bucket/team-gameday-"),
        ("s3://bucket", "s3://bucket/gameday-"),
    ],
)
def test_the_store_stands_beside_the_pipelines_and_has_a_new_name(address: str, begins: str) -> None:
    found = store_beside(address)
    assert re.fullmatch(re.escape(begins) + r"\d{8}-\d{6}-[0-9a-f]{6}", found)
    assert store_beside(address) != found


@pytest.mark.parametrize("fails", [False, True])
def test_the_store_is_removed_however_the_game_day_ends(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    mine = open_store(str(tmp_path / "mine"))
    settings.remember_store(mine.uri, {})
    pipeline = PipelineSpec.model_validate({**SPEC, "store": "mine"})
    try:
        with own_store(pipeline, tmp_path, None) as store:
            settings.remember_store(store.uri, {})
            store.create("trainings/k-0/x", b"x")
            assert len(list(tmp_path.glob("mine-gameday-*"))) == 1
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "mine"]
    assert [entry["uri"] for entry in settings.known_stores()] == [mine.uri]


def test_nothing_stays_in_the_bucket_not_even_what_a_killed_rank_had_begun_to_send(
    s3_server: S3Server,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    uri = f"s3://{s3_server.bucket()}/team"
    pipeline = PipelineSpec.model_validate({**SPEC, "store": {"uri": uri, "storage_options": s3_server.options}})
    mine = open_store(uri, s3_server.options)
    with own_store(pipeline, tmp_path, None) as store:
        store.create("trainings/k-0/x", b"x")
        for one in (mine, store):
            one._backend._call("create_multipart_upload", "trainings/k-0/checkpoints/weights")
    assert (store.stored(), store.leftovers()) == ([], [])
    assert ([file.path for file in mine.stored()], len(mine.leftovers())) == (["store.json"], 1)


def test_a_store_that_cannot_be_made_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(uri: str, options: dict[str, str], *, create: bool = True) -> Store:
        raise UsageError("It does not honour conditional writes." if create else f"There is no store at {uri}.")

    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(game_day, "open_store", refused)
    pipeline = PipelineSpec.model_validate({**SPEC, "store": "s3://bucket/team"})
    with pytest.raises(UsageError, match="conditional writes"), own_store(pipeline, tmp_path, None):
        raise AssertionError("there is no store")


def test_what_is_not_begun_within_the_time_is_not_tried_and_what_was_begun_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: Any, **__: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[0]

    monkeypatch.setattr(game_day._Training, "_start", start)
    day = GameDay("pipeline.yaml", [], None, PipelineSpec.model_validate(SPEC), until=time.monotonic())
    outcomes = carry_out(day, open_store(str(tmp_path / "store")), chosen(["rank-killed", "node-killed"]))
    assert [(one.verdict, one.why) for one in outcomes] == [("not injected", "the time was used up")] * 2
    assert [process.returncode for process in started] == [-signal.SIGINT]


def test_a_game_day_that_injected_no_fault_ends_with_exit_code_3() -> None:
    error = _error("tiny", [not_injected(fault, "the time was used up") for fault in chosen(None)])
    assert error is not None
    assert error.exit_code == 3
    assert error.message == "tiny: no fault was injected, so no promise was tried: the time was used up."
    faults = {fault.name: fault for fault in chosen(None)}
    struck = Outcome("rank-killed", "killed", "not recovered", "oom: full")
    error = _error("tiny", [struck, not_injected(faults["rank-hung"], "the time was used up")])
    assert error is not None
    assert error.message == "tiny: not as promised: rank-killed; not injected: rank-hung."


def test_a_training_of_a_game_day_lasts_some_steps_whatever_the_spec_says() -> None:
    trainer = {"max_epochs": 300, "max_time": "01:00:00:00", "min_steps": 99, "precision": "32"}
    short = shortened({"model": {"class_path": "a.B"}, "trainer": trainer})
    assert short == {
        "model": {"class_path": "a.B"},
        "trainer": {"precision": "32", "max_steps": STEPS, "max_epochs": -1},
    }
    assert shortened({})["trainer"] == {"max_steps": STEPS, "max_epochs": -1}


def test_its_name_says_what_it_is_and_stays_a_name() -> None:
    assert own_overrides("tiny")[0] == "name=tiny-gameday"
    assert len(own_overrides("x" * 63)[0]) == len("name=") + 63


@pytest.mark.parametrize(
    ("printed", "error", "sentence"),
    [
        (json.dumps({"error": Hung("Rank 0 is hung.").to_json()}), Hung, "Rank 0 is hung"),
        ("", TrainwrightError, r"ended with exit code -9 and no answer"),
        ('{"flow_run": "x"', TrainwrightError, r"ended with exit code -9 and no answer"),
    ],
)
def test_a_training_answers_with_its_error_or_with_none(
    printed: str, error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "answer.txt").write_text(printed)
    (tmp_path / "log.txt").write_text("it broke")
    with pytest.raises(error, match=sentence) as caught:
        _answer(tmp_path / "answer.txt", tmp_path / "log.txt", -9)
    assert getattr(caught.value, "details", {}).get("log", "it broke") == "it broke"
