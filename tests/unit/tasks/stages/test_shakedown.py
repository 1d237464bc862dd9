"""A shakedown that passed is kept; one that did not end, or that has nothing to try, ends no run and is not kept."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import Hung, OutOfMemory, UserCodeError
from data_contracts.handoffs import Ref
from data_contracts.messages.children import Shaken
from infra.processes.environment import NO_SHAKEDOWN
from infra.store import open_store
from tasks.run.run import Run
from tasks.stages import train
from tasks.stages.train import MOST_KEPT, first_weights, shake_down
from tests.support.runs import make_run
from tests.support.tiny import SPEC

DATASET: Any = object()
RUN = make_run(spec=SPEC)


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Carries out the shakedown of its `key` in place of a process."""
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path))
    monkeypatch.delenv(NO_SHAKEDOWN, raising=False)
    made = Mock(return_value=Shaken(), key="a")
    monkeypatch.setattr(train, "run_child", made)
    monkeypatch.setattr(Run, "project", lambda run: tmp_path)
    monkeypatch.setattr(train, "_shakedown_request", lambda run, dataset: None)
    monkeypatch.setattr(train, "_shakedown_key", lambda run, request: made.key)
    monkeypatch.setattr(train, "_laid_out", lambda run, request: contextlib.nullcontext(request))
    return made


def test_one_that_passed_is_kept(child: Mock, caplog: pytest.LogCaptureFixture) -> None:
    child.return_value = Shaken(remarks=["It took few rows."])
    shake_down(RUN, DATASET)
    shake_down(RUN, DATASET)
    assert (child.call_count, caplog.messages) == (1, ["shakedown: It took few rows."])
    for number in range(MOST_KEPT):
        child.key = f"b{number}"
        shake_down(RUN, DATASET)
    child.key = "a"
    shake_down(RUN, DATASET)
    assert child.call_count == MOST_KEPT + 2, "the oldest was forgotten"


@pytest.mark.parametrize("error", [OutOfMemory("It took too much."), Hung("It did not end.")])
def test_one_that_does_not_end_is_told_and_tried_again(
    child: Mock, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    child.side_effect = error
    for asked in (1, 2):
        shake_down(RUN, DATASET)
        assert child.call_count == asked
    assert str(error).split(".")[0] in caplog.messages[0]


def test_what_it_finds_ends_the_run(child: Mock) -> None:
    child.side_effect = UserCodeError("It raised.")
    for _ in range(2):
        with pytest.raises(UserCodeError, match="It raised"):
            shake_down(RUN, DATASET)
    assert child.call_count == 2


UNTRIED = {
    "no shards": (SPEC, "no shards exist yet"),
    "external data elsewhere": (
        {"train": {"launcher": "work-pool", "pool": "gpus"}},
        "its data module may read what this machine does not have",
    ),
}


@pytest.mark.parametrize(("spec", "why"), UNTRIED.values(), ids=UNTRIED)
def test_where_there_is_nothing_to_try_it_is_said(
    child: Mock, spec: Any, why: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "trainwright"):
        shake_down(make_run(spec=spec), None)
    assert child.call_count == 0
    assert caplog.messages == [f"no shakedown of the training now: {why}"]


def test_it_can_be_left_out(child: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NO_SHAKEDOWN, "1")
    shake_down(RUN, DATASET)
    assert child.call_count == 0


def test_a_training_that_has_outlived_its_first_weights_is_tried_without_them(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    weights = Ref(uri="imports/a", id="a" * 64, seal="b" * 64)
    assert first_weights(make_run(store, init_from=weights)) == ""
