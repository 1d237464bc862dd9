"""A shakedown that passed is kept; one that did not end, or that has nothing to try, ends no run and is not kept."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import Hung, OutOfMemory, UserCodeError
from data_contracts.handoffs import Ref
from data_contracts.messages.children import Shaken
from infra.processes.environment import NO_SHAKEDOWN
from infra.store import open_store
from tasks.stages import train
from tasks.stages.train import MOST_KEPT, first_weights, shake_down

DATASET: Any = object()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run whose key is `key`; `child` carries its shakedown out, and `asked` counts how often."""
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path))
    monkeypatch.delenv(NO_SHAKEDOWN, raising=False)
    made = SimpleNamespace(
        replay=None,
        external=False,
        withholds=False,
        spec=SimpleNamespace(train=SimpleNamespace(pool=None), contract=None),
        resolved=SimpleNamespace(predictions=None),
        project=lambda: tmp_path,
        key="a",
        asked=0,
        child=Shaken,
    )

    def child(*_: Any, **__: Any) -> Shaken:
        made.asked += 1
        return made.child()

    monkeypatch.setattr(train, "run_child", child)
    monkeypatch.setattr(train, "_shakedown_request", lambda run, dataset: None)
    monkeypatch.setattr(train, "_shakedown_key", lambda run, request: run.key)
    monkeypatch.setattr(train, "_laid_out", lambda run, request: contextlib.nullcontext(request))
    return made


def test_one_that_passed_is_kept(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    run.child = lambda: Shaken(remarks=["It took few rows."])
    shake_down(run, DATASET)
    shake_down(run, DATASET)
    assert (run.asked, caplog.messages) == (1, ["shakedown: It took few rows."])
    for number in range(MOST_KEPT):
        run.key = f"b{number}"
        shake_down(run, DATASET)
    run.key = "a"
    shake_down(run, DATASET)
    assert run.asked == MOST_KEPT + 2, "the oldest was forgotten"


@pytest.mark.parametrize("error", [OutOfMemory("It took too much."), Hung("It did not end.")])
def test_one_that_does_not_end_is_told_and_tried_again(
    run: Any, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def child() -> Shaken:
        raise error

    run.child = child
    for asked in (1, 2):
        shake_down(run, DATASET)
        assert run.asked == asked
    assert str(error).split(".")[0] in caplog.messages[0]


def test_what_it_finds_ends_the_run(run: Any) -> None:
    def child() -> Shaken:
        raise UserCodeError("It raised.")

    run.child = child
    for _ in range(2):
        with pytest.raises(UserCodeError, match="It raised"):
            shake_down(run, DATASET)
    assert run.asked == 2


UNTRIED = {
    "no shards": (False, None, None, "no shards exist yet"),
    "external data elsewhere": (True, "gpus", None, "its data module may read what this machine does not have"),
}


@pytest.mark.parametrize("case", UNTRIED)
def test_where_there_is_nothing_to_try_it_is_said(run: Any, case: str, caplog: pytest.LogCaptureFixture) -> None:
    run.external, run.spec.train.pool, dataset, why = UNTRIED[case]
    with caplog.at_level(logging.INFO, "trainwright"):
        shake_down(run, dataset)
    assert run.asked == 0
    assert caplog.messages == [f"no shakedown of the training now: {why}"]


def test_it_can_be_left_out(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NO_SHAKEDOWN, "1")
    shake_down(run, DATASET)
    assert run.asked == 0


def test_a_training_that_has_outlived_its_first_weights_is_tried_without_them(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    weights = Ref(uri="imports/a", id="a" * 64, seal="b" * 64)
    run: Any = SimpleNamespace(store=store, resolved=SimpleNamespace(init_from=weights))
    assert first_weights(run) == ""
