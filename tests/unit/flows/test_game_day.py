"""A game day: its time, how one of its trainings answers, and what it leaves in the settings of this machine."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import Hung, TrainwrightError
from data_contracts.messages.gang import GameTraining
from data_contracts.pipeline_spec import PipelineSpec
from flows.commands.gameday import GameDay, _error, carry_out
from infra.processes.processes import TiedProcess
from infra.settings import known_stores
from infra.store import open_store
from tasks import gameday
from tasks.gameday import (
    STEPS,
    ConductedTraining,
    Outcome,
    answer_of,
    chosen,
    not_injected,
    own_overrides,
    shortened,
    train_once,
)
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tests.support.tiny import SPEC, write_project


def test_what_is_not_begun_within_the_time_is_not_tried_and_what_was_begun_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "waits.py").write_text(f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started: list[TiedProcess] = []

    def start(self: Any, answer: Path, printed: Path, **_: Any) -> TiedProcess:
        started.append(TiedProcess("waits", mark=self._mark, output=answer, log=printed))
        # Python that is interrupted while it starts ends with exit code 1.
        while not begun.exists():
            assert started[0].exit_code is None, printed.read_text()
            time.sleep(0.01)
        return started[0]

    monkeypatch.setattr(ConductedTraining, "_start", start)
    day = GameDay("pipeline.yaml", [], None, PipelineSpec.model_validate(SPEC), until=time.monotonic())
    outcomes = carry_out(day, open_store(str(tmp_path / "store")), chosen(["rank-killed", "node-killed"]))
    assert [(one.verdict, one.why) for one in outcomes] == [("not injected", "the time was used up")] * 2
    assert [process.exit_code for process in started] == [-signal.SIGINT]


def test_a_game_day_that_injected_no_fault_ends_with_exit_code_3() -> None:
    error = _error("tiny", [not_injected(fault, "the time was used up") for fault in chosen(None)])
    assert error.exit_code == 3
    assert error.message == "tiny: no fault was injected, so no promise was tried: the time was used up."
    faults = {fault.name: fault for fault in chosen(None)}
    struck = Outcome("rank-killed", "killed", "not recovered", "oom: full")
    error = _error("tiny", [struck, not_injected(faults["rank-hung"], "the time was used up")])
    assert error.message == "tiny: not as promised: rank-killed; not injected: rank-hung."


def test_a_training_of_a_game_day_lasts_some_steps_whatever_the_spec_says() -> None:
    trainer = {"max_epochs": 300, "max_time": "01:00:00:00", "min_steps": 99, "precision": "32"}
    assert shortened({"model": {"class_path": "a.B"}, "trainer": trainer}) == {
        "model": {"class_path": "a.B"},
        "trainer": {"precision": "32", "max_steps": STEPS, "max_epochs": -1},
    }
    assert shortened({})["trainer"] == {"max_steps": STEPS, "max_epochs": -1}


def test_its_name_says_what_it_is_and_stays_a_name() -> None:
    assert (own_overrides("tiny")[0], len(own_overrides("x" * 63)[0])) == ("name=tiny-gameday", len("name=") + 63)


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
        answer_of(tmp_path / "answer.txt", tmp_path / "log.txt", -9)
    assert getattr(caught.value, "details", {}).get("log", "it broke") == "it broke"


def test_a_game_day_reads_its_rows_here_and_no_later_command_looks_for_its_store(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opened(Exception):
        """The run was opened."""

    def opened(run: Run) -> None:
        raise Opened(run.spec.contract.runner, run.spec.shards.runner)  # type: ignore[union-attr]

    monkeypatch.setattr(gameday, "validate", opened)
    runner = {"dask": "tcp://scheduler:8786", "scratch": str(tmp_path)}
    spec = write_project(tmp_path / "tiny", {name: {**SPEC[name], "runner": runner} for name in ("contract", "shards")})
    overrides, own = own_overrides("tiny"), str(tmp_path / "own")
    wanted = GameTraining(spec=str(spec), overrides=overrides, window=None, store=own, fault=None, fresh=True)
    with pytest.raises(Opened) as caught:
        train_once(wanted, read_spec(spec, overrides))
    assert caught.value.args == ("local", "local")
    assert ((tmp_path / "own" / "store.json").exists(), known_stores()) == (True, [])
    open_run(read_spec(spec), store_uri=str(tmp_path / "mine"), recorded=False)
    assert [entry["uri"] for entry in known_stores()] == [str(tmp_path / "mine")]
